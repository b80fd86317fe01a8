//go:build cloud

package config

// cloudBuilt tells whether this binary was built with the catalogs and stores of the build tag cloud.
const cloudBuilt = true
