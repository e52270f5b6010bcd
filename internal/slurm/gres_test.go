package slurm

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Known defects of other parsers: a panic on (null) and on shards, reading only the first
// parenthesis, and taking the number in CNT for a device index.
func TestParseGRES(t *testing.T) {
	f := func(s string, want ...GRES) {
		t.Helper()
		got, err := ParseGRES(s)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: %v (-want +got):\n%s", s, err, diff)
		}
	}
	f("")
	f("(null)")
	f("N/A")
	f("none")
	f("gpu:h100:2(IDX:0-1)", GRES{Name: "gpu", Type: "h100", Count: 2, Index: []int{0, 1}})
	f("gpu:8(IDX:0-2,5,7)", GRES{Name: "gpu", Count: 8, Index: []int{0, 1, 2, 5, 7}})
	f("gpu:h100:2(IDX:0-1),gpu:a100:2(IDX:2-3)",
		GRES{Name: "gpu", Type: "h100", Count: 2, Index: []int{0, 1}}, GRES{Name: "gpu", Type: "a100", Count: 2, Index: []int{2, 3}})
	f("nic:mlx:1(IDX:5),gpu:h100:2(IDX:0-1)",
		GRES{Name: "nic", Type: "mlx", Count: 1, Index: []int{5}}, GRES{Name: "gpu", Type: "h100", Count: 2, Index: []int{0, 1}})
	f("gpu:8(null)", GRES{Name: "gpu", Count: 8})
	f("gpu:h100:8(S:0-1)", GRES{Name: "gpu", Type: "h100", Count: 8})
	f("gpu:h100:8(S:0-1,3)", GRES{Name: "gpu", Type: "h100", Count: 8})
	f("gpu(CNT:2)", GRES{Name: "gpu", Count: 2})
	f("gpu:8(CNT:2)", GRES{Name: "gpu", Count: 2})
	f("gpu:h100(CNT:2)", GRES{Name: "gpu", Type: "h100", Count: 2})
	f("gpu:h100:0(IDX:N/A)", GRES{Name: "gpu", Type: "h100"})
	f("gpu", GRES{Name: "gpu", Count: 1})
	f("gpu:a100", GRES{Name: "gpu", Type: "a100", Count: 1})
	f("gpu:a100_1g.10gb:3(IDX:4-6)", GRES{Name: "gpu", Type: "a100_1g.10gb", Count: 3, Index: []int{4, 5, 6}})
	// As written by 22.05 and by newer versions.
	f("shard:2(IDX:4)", GRES{Name: "shard", Count: 2, Index: []int{4}})
	f("shard:2(0/4,2/4)", GRES{Name: "shard", Count: 2, Parts: []Part{{0, 4}, {2, 4}}})
	f("shard:h100:2(2/8)", GRES{Name: "shard", Type: "h100", Count: 2, Parts: []Part{{2, 8}}})
	f("mps:100(100/200,0/200),gpu:1(IDX:3)",
		GRES{Name: "mps", Count: 100, Parts: []Part{{100, 200}, {0, 200}}}, GRES{Name: "gpu", Count: 1, Index: []int{3}})
	// As written by 26.05 for a node with two GPUs that are allocated as a whole.
	f("shard:h100:2(-/4,-/4,2/4,0/4)", GRES{Name: "shard", Type: "h100", Count: 2, Parts: []Part{{0, 4}, {0, 4}, {2, 4}, {0, 4}}})
	// Trackable and requested resources.
	f("gres/gpu:a100=2", GRES{Name: "gpu", Type: "a100", Count: 2})
	f("gres/gpu:a100:2", GRES{Name: "gpu", Type: "a100", Count: 2})
	f("gres/gpu=8,gres/gpu:h100=8,gres/shard=2", GRES{Name: "gpu", Count: 8}, GRES{Name: "gpu", Type: "h100", Count: 8}, GRES{Name: "shard", Count: 2})
	f("gres:gpu:2", GRES{Name: "gpu", Count: 2})
	f("craynetwork:4K", GRES{Name: "craynetwork", Count: 4096})
	f("gpu:h100:no_consume:4", GRES{Name: "gpu", Type: "h100", Count: 4})
}

// An unreadable resource does not void the others.
func TestParseGRESOdd(t *testing.T) {
	f := func(s string, want ...GRES) {
		t.Helper()
		got, err := ParseGRES(s)
		if diff := cmp.Diff(want, got); diff != "" || err == nil {
			t.Errorf("%q: %v (-want +got):\n%s", s, err, diff)
		}
	}
	one := GRES{Name: "gpu", Count: 1, Index: []int{3}}
	f("gpu:2(IDX:a-b),gpu:1(IDX:3)", one)
	f("gpu:2(IDX:3-1),gpu:1(IDX:3)", one)
	f("gpu:2(IDX:0-99999999),gpu:1(IDX:3)", one)
	f("gpu:2(WAT:1),gpu:1(IDX:3)", one)
	f(":::,gpu:1(IDX:3)", one)
	f("a:b:c:d,gpu:1(IDX:3)", one)
	f("shard:2(x/4),gpu:1(IDX:3)", one)
	f("shard:2(-1/4),gpu:1(IDX:3)", one)
	f("shard:2(-/-),gpu:1(IDX:3)", one)
	f("gres/gpu=99999999999999999999,gpu:1(IDX:3)", one)
}

func FuzzParseGRES(f *testing.F) {
	for _, s := range []string{"gpu:h100:2(IDX:0-1),shard:2(0/4,2/4)", "gres/gpu:a100=2", "gpu(CNT:2)", "(null)", "gpu:8(S:0-1)"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		list, _ := ParseGRES(s)
		for _, g := range list {
			if g.Name == "" || len(g.Parts) > MaxIndex {
				t.Errorf("%+v", g)
			}
		}
	})
}
