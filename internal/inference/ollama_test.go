package inference

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Catches a model without its memory, memory that is unknown and shown as zero, a model that is listed
// twice, and a list that is not Ollama's.
func TestReadOllama(t *testing.T) {
	t.Parallel()
	type result struct {
		Lines    []string
		Rejected int
		Failed   bool
	}
	for _, tt := range []struct {
		name, list string
		want       result
	}{
		{"two models, one partly in main memory", `{"models":[{"name":"llama3:8b","model":"llama3:8b","size":4811340143,"size_vram":4811340143},{"name":"qwen:72b","size":9,"size_vram":4}]}`, result{Lines: []string{
			"inference.model.loaded{name=ollama model=llama3:8b} 1",
			"inference.model.loaded{name=ollama model=qwen:72b} 1",
			"inference.model.memory.usage{name=ollama model=llama3:8b} 4.811340143e+09",
			"inference.model.memory.usage{name=ollama model=qwen:72b} 4",
		}}},
		{"none loaded", `{"models":[]}`, result{Lines: []string{}}},
		{"memory that is unknown, and on no device", `{"models":[{"name":"a"},{"name":"b","size_vram":0}]}`, result{Lines: []string{
			"inference.model.loaded{name=ollama model=a} 1",
			"inference.model.loaded{name=ollama model=b} 1",
			"inference.model.memory.usage{name=ollama model=b} 0",
		}}},
		{"twice, without a name, and nonsense", `{"models":[{"name":"a","size_vram":-1},{"name":"a"},{"size_vram":1}]}`, result{Rejected: 2, Lines: []string{
			"inference.model.loaded{name=ollama model=a} 1",
		}}},
		{"another program", `{"status":"ok"}`, result{Failed: true}},
		{"no JSON", `Ollama is running`, result{Failed: true}},
	} {
		r, err := ReadOllama([]byte(tt.list))
		got := result{Failed: err != nil}
		if r != nil {
			got.Lines, got.Rejected = lines(r), r.Rejected
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
