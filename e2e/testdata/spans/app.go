// App is an application with OpenTelemetry's SDK for Go. It reads lines of four times in nanoseconds, sends three
// spans with them, and prints their trace: outer and beside overlap in part, and inner is in outer.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

func main() {
	ctx := context.Background()
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithInsecure(), otlptracegrpc.WithEndpoint(os.Args[1]))
	if err != nil {
		log.Fatal(err)
	}
	provider := sdk.NewTracerProvider(sdk.WithBatcher(exporter))
	tracer := provider.Tracer("app")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var t [4]int64
		if _, err := fmt.Sscan(lines.Text(), &t[0], &t[1], &t[2], &t[3]); err != nil {
			log.Fatal(err)
		}
		at := func(i int) trace.SpanEventOption { return trace.WithTimestamp(time.Unix(0, t[i])) }
		below, outer := tracer.Start(ctx, "outer", at(0))
		_, inner := tracer.Start(below, "inner", at(1))
		inner.End(at(2))
		outer.End(at(3))
		_, beside := tracer.Start(ctx, "beside", at(2), trace.WithLinks(trace.LinkFromContext(below)))
		beside.End(at(3))
		if err := provider.ForceFlush(ctx); err != nil {
			log.Fatal(err)
		}
		fmt.Println("sent", outer.SpanContext().TraceID(), beside.SpanContext().TraceID())
	}
}
