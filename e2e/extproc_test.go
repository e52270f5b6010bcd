//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
)

// rawCodec sends and receives messages of protocol buffers as they are. Envoy's definitions have more than a
// hundred packages; we need six fields.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

// message returns a field that is a message, a text or bytes.
func message(field protowire.Number, parts ...[]byte) []byte {
	var inner []byte
	for _, p := range parts {
		inner = append(inner, p...)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), inner)
}

// fields returns the values of a field of a message that are messages, texts or bytes.
func fields(b []byte, field protowire.Number) (out [][]byte) {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeField(b)
		if n < 0 {
			return nil
		}
		if _, _, tag := protowire.ConsumeTag(b); number == field && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(b[tag:])
			out = append(out, value)
		}
		b = b[n:]
	}
	return out
}

// inside follows a path of fields.
func inside(b []byte, path ...protowire.Number) [][]byte {
	list := [][]byte{b}
	for _, field := range path {
		var next [][]byte
		for _, m := range list {
			next = append(next, fields(m, field)...)
		}
		list = next
	}
	return list
}

// destination asks an endpoint picker for the address of a pod as Envoy does: by its protocol for external processing
// (ext_proc), with the headers and the body of a request.
func destination(t *testing.T, address, model, prompt string) (string, error) {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/envoy.service.ext_proc.v3.ExternalProcessor/Process", grpc.ForceCodec(rawCodec{}))
	if err != nil {
		return "", err
	}
	body, err := json.Marshal(map[string]any{"model": model, "prompt": prompt, "max_tokens": 8})
	if err != nil {
		return "", err
	}
	header := func(key, value string) []byte {
		return message(1, message(1, []byte(key)), message(3, []byte(value))) // HeaderMap.headers: key, raw_value
	}
	end := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 1)
	for _, m := range [][]byte{
		message(2, message(1, header(":method", "POST"), header(":path", "/v1/completions"), header("content-type", "application/json"))), // request_headers
		message(4, message(1, body), end), // request_body, whose end_of_stream is set
	} {
		if err := stream.SendMsg(&m); err != nil {
			return "", err
		}
	}
	var answer []byte
	if err := stream.RecvMsg(&answer); err != nil {
		return "", err
	}
	// request_headers.response.header_mutation.set_headers.header
	for _, h := range inside(answer, 1, 1, 2, 1, 1) {
		if key := fields(h, 1); len(key) == 1 && string(key[0]) == "x-gateway-destination-endpoint" {
			if value := fields(h, 3); len(value) == 1 {
				return string(value[0]), nil
			}
		}
	}
	return "", fmt.Errorf("the picker chose no pod: %q", answer)
}
