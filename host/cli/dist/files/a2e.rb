class A2e < Formula
  desc "Agent-to-environment host: one static binary that an agent spawns"
  homepage "{{.URL}}"
  version "{{.Number}}"
  license "MIT"

  on_macos do
    on_arm do
      url "{{.URL}}/{{.Version}}/a2e-{{.Version}}-darwin-arm64.tar.gz"
      sha256 "{{.Sums.darwin_arm64}}"
    end
    on_intel do
      url "{{.URL}}/{{.Version}}/a2e-{{.Version}}-darwin-amd64.tar.gz"
      sha256 "{{.Sums.darwin_amd64}}"
    end
  end

  on_linux do
    on_arm do
      url "{{.URL}}/{{.Version}}/a2e-{{.Version}}-linux-arm64.tar.gz"
      sha256 "{{.Sums.linux_arm64}}"
    end
    on_intel do
      url "{{.URL}}/{{.Version}}/a2e-{{.Version}}-linux-amd64.tar.gz"
      sha256 "{{.Sums.linux_amd64}}"
    end
  end

  def install
    bin.install "a2e"
    bash_completion.install "completions/a2e.bash" => "a2e"
    zsh_completion.install "completions/_a2e"
    fish_completion.install "completions/a2e.fish"
    man1.install "man/a2e.1"
  end

  test do
    assert_match "pong", pipe_output(bin/"a2e", %({"type":"ping","id":"1"}\n))
  end
end
