package slurm_test

import (
	"fmt"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// A job holds two H100s by index and two shards of the second device. Text that cannot be
// parsed is reported without voiding the rest.
func ExampleParseGRES() {
	list, err := slurm.ParseGRES("gpu:h100:2(IDX:0-1),shard:2(0/4,2/4),gpu:2(IDX:b)")
	for _, g := range list {
		fmt.Println(g.Name, g.Type, g.Count, g.Index, g.Parts)
	}
	fmt.Println("error:", err)
	// Output:
	// gpu h100 2 [0 1] []
	// shard  2 [] [{0 4} {2 4}]
	// error: GRES "gpu:2(IDX:b)": "b" is not a device number
}

func ExampleHosts() {
	err := slurm.Hosts("rack[1-2]n[01,03],login", func(host string) bool {
		fmt.Println(host)
		return true
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// rack1n01
	// rack1n03
	// rack2n01
	// rack2n03
	// login
}
