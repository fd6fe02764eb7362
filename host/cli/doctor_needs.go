package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"a2e/host"
	"a2e/host/config"
	"a2e/plugins"
)

const (
	liveTime   = 10 * time.Second // of one trial that says nothing itself
	liveAtOnce = 16               // trials at once
)

// needCheck is what became of one need.
type needCheck struct {
	Level  level  `json:"level"`
	Plugin string `json:"plugin"`
	Of     string `json:"of"`    // such as "MCP server files"
	Place  string `json:"place"` // FILE:LINE:COLUMN of the config; "" = it is not in the file
	Text   string `json:"text"`  // what was found, or what is wrong
	Fix    string `json:"fix"`
	Live   bool   `json:"live"` // it was tried out
	MS     int64  `json:"ms"`   // that this took

	need host.Need
}

// lookAtNeeds looks for what the options of plugins name. Nothing is started.
func lookAtNeeds(cfg *config.Config, made []host.Plugin) []needCheck {
	all := []needCheck{}
	for _, plugin := range made {
		needer, ok := host.As[host.Needer](plugin)
		if !ok {
			continue
		}
		name := plugin.Info().Name
		at := slices.IndexFunc(cfg.Plugins, func(p config.Plugin) bool { return p.Name == name })
		for _, need := range needer.Needs() {
			c := needCheck{Plugin: name, Of: need.Of, need: need}
			if at >= 0 && need.Option != "" {
				c.Place = cfg.Plugins[at].Options.Where(need.Option)
			}
			c.found(need.Look())
			all = append(all, c.masked(cfg))
		}
	}
	return all
}

// found notes what came of looking or trying.
func (c *needCheck) found(text string, err error) {
	lack := (*host.Lack)(nil)
	switch c.Level, c.Text = levelFine, text; {
	case err == nil:
		return
	case errors.As(err, &lack) && lack.Minor:
		c.Level = levelWarning
	default:
		c.Level = levelError
	}
	c.Text, c.Fix = reasonOf(err), fixOf(err)
}

// masked returns c without a secret of the config: an untrusted one may put any variable anywhere.
func (c needCheck) masked(cfg *config.Config) needCheck {
	for _, text := range []*string{&c.Of, &c.Text, &c.Fix} {
		*text = cfg.Secrets.Text(*text)
	}
	return c
}

// try tries out what can be tried and is not wrong already, side by side.
func (o doctorCmd) try(ctx context.Context, all []needCheck, cfg *config.Config, sys *System) {
	var trials sync.WaitGroup
	var left, ended atomic.Int64
	places := make(chan struct{}, liveAtOnce)
	for i := range all {
		if c := &all[i]; c.need.Live != nil && c.Level != levelError {
			left.Add(1)
			trials.Go(func() {
				places <- struct{}{}
				o.tryOne(ctx, c)
				*c = c.masked(cfg)
				ended.Add(1)
				<-places
			})
		}
	}
	done := sys.waiting(func() string { return fmt.Sprintf("tried out: %d of %d", ended.Load(), left.Load()) })
	trials.Wait()
	done()
}

// tryOne tries one thing out, and does not wait longer than it may take.
func (o doctorCmd) tryOne(ctx context.Context, c *needCheck) {
	limit := liveTime
	if c.need.Wait > 0 {
		limit = c.need.Wait
	}
	if o.Timeout > 0 {
		limit = time.Duration(o.Timeout * float64(time.Second))
	}
	ctx, stop := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it did not answer within %s", limit))
	defer stop()
	type outcome struct {
		found string
		err   error
	}
	ended, began := make(chan outcome, 1), time.Now()
	go func() {
		found, err := c.need.Live(ctx)
		ended <- outcome{found, err}
	}()
	was := *c
	select {
	case got := <-ended:
		if got.err != nil && ctx.Err() != nil {
			got.err = context.Cause(ctx)
		}
		c.found(got.found, got.err)
	case <-ctx.Done():
		c.found("", context.Cause(ctx))
	}
	if c.Live, c.MS = true, time.Since(began).Milliseconds(); was.Level == levelWarning { // what was seen before may be why
		c.Text, c.Fix = c.Text+"; "+was.Text, cmp.Or(c.Fix, was.Fix)
		if c.Level == levelFine {
			c.Level = levelWarning
		}
	}
}

// checkUntrusted looks for what the folder's own config names that nobody has trusted, as if it
// were: nothing of it is started or reached.
func (d *diagnosis) checkUntrusted(cmd *commands, sys *System, cfg *config.Config) {
	if cfg.Untrusted == "" {
		return
	}
	src := cmd.source(sys)
	src.Trust = func(string, []byte) error { return nil }
	asked, _, err := config.Load(src)
	var made []host.Plugin
	if err == nil {
		made, err = plugins.New(asked, plugins.Deps{})
		defer closePlugins(made)
	}
	if err != nil {
		d.Untrusted = []needCheck{{Level: levelWarning, Of: config.FolderFile, Text: err.Error(), Fix: fixOf(err)}}
		return
	}
	for _, c := range lookAtNeeds(asked, made) {
		if c.Level == levelError {
			c.Level = levelWarning // it does not count yet
		}
		d.Untrusted = append(d.Untrusted, c)
	}
}
