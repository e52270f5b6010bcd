//go:build e2e

package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
)

// The kinds of values in a GGUF file.
const (
	ggufU32   = 4
	ggufI32   = 5
	ggufF32   = 6
	ggufText  = 8
	ggufArray = 9
)

// The smallest model that a server of llama.cpp loads: two layers.
const modelWidth, modelLayers, modelHeads, modelInner = 64, 2, 4, 128

// gguf is a file with a model, as llama.cpp reads it.
type gguf struct {
	bytes.Buffer
}

func (g *gguf) put(values ...any) {
	for _, v := range values {
		if text, ok := v.(string); ok {
			g.put(uint64(len(text)))
			g.WriteString(text)
			continue
		}
		_ = binary.Write(g, binary.LittleEndian, v) // a buffer takes everything
	}
}

func (g *gguf) align() { g.Write(make([]byte, -g.Len()&31)) }

// writeModel writes a model with random weights, the same each time. What it says makes no sense, but it
// takes and returns tokens like any other.
func writeModel(t *testing.T, path string) {
	t.Helper()
	tokens, kinds := []string{"<unk>", "<s>", "</s>"}, []int32{2, 3, 3}
	for i := range 256 {
		tokens, kinds = append(tokens, fmt.Sprintf("<0x%02X>", i)), append(kinds, 6)
	}
	for _, c := range "\u2581abcdefghijklmnopqrstuvwxyz" {
		tokens, kinds = append(tokens, string(c)), append(kinds, 1)
	}
	settings := []struct {
		name  string
		kind  uint32
		value []any
	}{
		{"general.architecture", ggufText, []any{"llama"}},
		{"general.name", ggufText, []any{"tiny-random"}},
		{"llama.context_length", ggufU32, []any{uint32(2048)}},
		{"llama.embedding_length", ggufU32, []any{uint32(modelWidth)}},
		{"llama.block_count", ggufU32, []any{uint32(modelLayers)}},
		{"llama.feed_forward_length", ggufU32, []any{uint32(modelInner)}},
		{"llama.attention.head_count", ggufU32, []any{uint32(modelHeads)}},
		{"llama.attention.head_count_kv", ggufU32, []any{uint32(modelHeads)}},
		{"llama.attention.layer_norm_rms_epsilon", ggufF32, []any{float32(1e-5)}},
		{"llama.rope.dimension_count", ggufU32, []any{uint32(modelWidth / modelHeads)}},
		{"llama.vocab_size", ggufU32, []any{uint32(len(tokens))}},
		{"general.file_type", ggufU32, []any{uint32(0)}},
		{"tokenizer.ggml.model", ggufText, []any{"llama"}},
		{"tokenizer.ggml.tokens", ggufArray, append([]any{uint32(ggufText), uint64(len(tokens))}, anys(tokens)...)},
		{"tokenizer.ggml.scores", ggufArray, []any{uint32(ggufF32), uint64(len(tokens)), make([]float32, len(tokens))}},
		{"tokenizer.ggml.token_type", ggufArray, []any{uint32(ggufI32), uint64(len(tokens)), kinds}},
		{"tokenizer.ggml.bos_token_id", ggufU32, []any{uint32(1)}},
		{"tokenizer.ggml.eos_token_id", ggufU32, []any{uint32(2)}},
		{"tokenizer.ggml.unknown_token_id", ggufU32, []any{uint32(0)}},
	}
	tensors := modelTensors(uint64(len(tokens)))
	var file, data gguf
	file.WriteString("GGUF")
	file.put(uint32(3), uint64(len(tensors)), uint64(len(settings)))
	for _, s := range settings {
		file.put(s.name, s.kind)
		file.put(s.value...)
	}
	random := rand.New(rand.NewPCG(1, 1))
	for _, tensor := range tensors {
		file.put(tensor.name, uint32(len(tensor.shape)), tensor.shape, uint32(0), uint64(data.Len()))
		n := uint64(1)
		for _, size := range tensor.shape {
			n *= size
		}
		weights := make([]float32, n)
		for i := range weights {
			if weights[i] = 1; len(tensor.shape) > 1 {
				weights[i] = float32(random.NormFloat64() * 0.05)
			}
		}
		data.put(weights)
		data.align()
	}
	file.align()
	file.Write(data.Bytes())
	if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// modelTensor is a matrix of weights, or a vector for normalization.
type modelTensor struct {
	name  string
	shape []uint64
}

func modelTensors(vocabulary uint64) []modelTensor {
	list := []modelTensor{{"token_embd.weight", []uint64{modelWidth, vocabulary}}}
	for i := range modelLayers {
		layer := func(name string, shape ...uint64) {
			list = append(list, modelTensor{fmt.Sprintf("blk.%d.%s.weight", i, name), shape})
		}
		layer("attn_norm", modelWidth)
		for _, name := range []string{"attn_q", "attn_k", "attn_v", "attn_output"} {
			layer(name, modelWidth, modelWidth)
		}
		layer("ffn_norm", modelWidth)
		layer("ffn_gate", modelWidth, modelInner)
		layer("ffn_up", modelWidth, modelInner)
		layer("ffn_down", modelInner, modelWidth)
	}
	return append(list, modelTensor{"output_norm.weight", []uint64{modelWidth}}, modelTensor{"output.weight", []uint64{modelWidth, vocabulary}})
}

func anys(texts []string) []any {
	out := make([]any, len(texts))
	for i, text := range texts {
		out[i] = text
	}
	return out
}
