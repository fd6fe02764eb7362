package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
)

// Kong's own Parse, Validate and Run look methods up by names in variables. The linker then has
// to keep every exported method of the program: 2.5 MB of them. So its steps are taken here, one
// by one, for what the commands use of it: enums, required values, exclusive flags. The model has
// nothing else (hooks, environment variables, validators, flags that belong together).

// parse reads the command line into the commands of the parser. --help and --version end here,
// as kong.Exit does.
func parse(parser *kong.Kong, args []string) (*kong.Context, error) {
	ctx, err := kong.Trace(parser, args)
	if err != nil {
		return nil, err
	}
	if ctx.Error != nil {
		return nil, ctx.Error
	}
	for _, at := range ctx.Path {
		switch {
		case at.Flag == nil:
		case at.Flag == parser.Model.HelpFlag:
			if err := ctx.PrintUsage(false); err != nil {
				return nil, err
			}
			parser.Exit(exitOK)
		case at.Flag.Name == "version":
			fmt.Fprintln(parser.Stdout, versionLine())
			parser.Exit(exitOK)
		}
	}
	if err := ctx.Reset(); err != nil {
		return nil, err
	}
	if _, err := ctx.Apply(); err != nil {
		return nil, err
	}
	return ctx, validate(ctx)
}

// run runs the selected command.
func run(ctx *kong.Context, cmd *commands, sys *System) error {
	return runner(ctx.Selected().Target.Addr().Interface())(cmd, sys)
}

// runner returns how a command runs; nil = it does not. A test looks at each.
func runner(command any) func(*commands, *System) error {
	switch command := command.(type) {
	case interface {
		Run(*commands, *System) error
	}:
		return command.Run
	case interface{ Run(*System) error }:
		return func(_ *commands, sys *System) error { return command.Run(sys) }
	}
	return nil
}

// validate returns an error for values that are none of an enum, for what is missing, and for
// flags that exclude each other.
func validate(ctx *kong.Context) error {
	for _, at := range ctx.Path {
		if at.Node() == nil {
			continue // a flag or an argument, which its command has checked
		}
		for _, value := range at.Node().Values() {
			if err := checkEnum(value); err != nil {
				return err
			}
		}
		if err := checkFlags(at.Flags); err != nil {
			return err
		}
	}
	return checkMissing(ctx.Selected())
}

func checkEnum(value *kong.Value) error {
	text := fmt.Sprint(value.Target)
	if value.Enum == "" || slices.Contains(value.EnumSlice(), text) || !value.Set && !value.HasDefault {
		return nil
	}
	var allowed []string
	for _, one := range value.EnumSlice() {
		allowed = append(allowed, strconv.Quote(one))
	}
	return fmt.Errorf("%s must be one of %s but got %q", value.ShortSummary(), strings.Join(allowed, ","), text)
}

func checkFlags(flags []*kong.Flag) error {
	seen := map[string]string{}
	for _, flag := range flags {
		switch {
		case !flag.Set && flag.Required:
			return fmt.Errorf("missing flags: %s", flag.Summary())
		case !flag.Set:
			continue
		}
		for _, group := range flag.Xor {
			if other := seen[group]; other != "" {
				return fmt.Errorf("--%s and --%s can't be used together", other, flag.Name)
			}
			seen[group] = flag.Name
		}
	}
	return nil
}

// maxExpected bounds what is listed as expected.
const maxExpected = 5

// checkMissing returns an error if node, the command that was selected, lacks arguments, or a
// subcommand. nil = none was selected.
func checkMissing(node *kong.Node) error {
	if node == nil {
		return errors.New("expected a command")
	}
	var missing, arguments []string
	for _, arg := range node.Positional {
		if arg.Required && !arg.Set {
			arguments = append(arguments, arg.Summary())
		}
	}
	if len(arguments) > 0 {
		missing = append(missing, strconv.Quote(strings.Join(arguments, " ")))
	}
	for _, child := range node.Children {
		if !child.Hidden {
			missing = append(missing, strconv.Quote(child.Name))
		}
	}
	if len(missing) > maxExpected {
		missing = append(missing[:maxExpected], "...")
	}
	switch len(missing) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("expected %s", missing[0])
	}
	return fmt.Errorf("expected one of %s", strings.Join(missing, ", "))
}
