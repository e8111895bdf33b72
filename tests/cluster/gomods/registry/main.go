// The reference registry with what tests need of it: files as storage, passwords or tokens as proof.
//
// Its own main package would also build the stores of three clouds, which takes minutes.
package main

import (
	"os"

	"github.com/distribution/distribution/v3/registry"
	_ "github.com/distribution/distribution/v3/registry/auth/htpasswd"
	_ "github.com/distribution/distribution/v3/registry/auth/token"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
)

func main() {
	if registry.RootCmd.Execute() != nil {
		os.Exit(1)
	}
}
