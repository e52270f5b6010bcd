//go:generate go tool -modfile=../../tools.mod mdatagen metadata.yaml

// Package inferencereceiver reports what inference engines serve: latencies, tokens, queues and caches of
// vLLM, SGLang, TGI, Triton, TensorRT-LLM, NIM, Dynamo, Ray Serve, llama.cpp and others, in one
// vocabulary. Package inference has the names of each engine.
package inferencereceiver
