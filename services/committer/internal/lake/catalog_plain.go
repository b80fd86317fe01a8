//go:build !cloud

package lake

const cloudBuild = false

func cloudOpener(cfg Config) (opener, error) { return nil, needsCloud("catalog.type", cfg.Type) }
