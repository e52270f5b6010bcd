package inference

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// ollama is the provider of what Ollama says.
const ollama = "ollama"

// maxModels bounds the models of one Ollama. It loads as many as fit into the memory of its devices.
const maxModels = 256

// What Ollama says. It counts neither requests nor tokens.
var (
	modelLoaded = &Metric{"inference.model.loaded", "{model}", Gauge, "1 for each model that the engine has loaded, of engines that load models on demand."}
	modelMemory = &Metric{"inference.model.memory.usage", "By", UpDown, "Memory of devices that a loaded model takes."}
)

// ReadOllama reads the list of loaded models that Ollama has at /api/ps. Without a model the reading has
// no points.
func ReadOllama(list []byte) (*Reading, error) {
	var answer struct {
		Models *[]struct {
			Name string   `json:"name"`
			VRAM *float64 `json:"size_vram"` // bytes
		} `json:"models"`
	}
	if err := json.Unmarshal(list, &answer); err != nil {
		return nil, fmt.Errorf("cannot parse the list of loaded models: %w", err)
	}
	if answer.Models == nil {
		return nil, errors.New("cannot parse the list of loaded models: the answer has none")
	}
	out := &Reading{Providers: []string{ollama}}
	known := map[string]bool{}
	for _, m := range *answer.Models {
		if m.Name == "" || len(m.Name) > maxValue || known[m.Name] || len(known) == maxModels {
			out.Rejected++
			continue
		}
		known[m.Name] = true
		attrs := []Attr{{AttrProvider, ollama}, {AttrModel, m.Name}}
		out.Points = append(out.Points, Point{Metric: modelLoaded, Attrs: attrs, Value: 1})
		if m.VRAM != nil && *m.VRAM >= 0 && *m.VRAM < math.MaxInt64 {
			out.Points = append(out.Points, Point{Metric: modelMemory, Attrs: attrs, Value: *m.VRAM})
		}
	}
	return out, nil
}
