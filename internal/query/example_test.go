package query_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// Any store with Prometheus' HTTP API answers; here it is a server with one fixed answer.
func ExampleClient() {
	prometheus := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"status":"success","data":{"resultType":"vector","result":[
			{"metric":{"gpu_index":"0"},"value":[1763208000,"0.75"]}]}}`)
	}))
	defer prometheus.Close()
	store, err := query.Open(query.Config{URL: prometheus.URL, Timeout: 10 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	samples, err := store.Instant(context.Background(), "avg by (gpu_index) (gpu_utilization_ratio)", time.Unix(1763208000, 0))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range samples {
		fmt.Println(s.Labels["gpu_index"], s.Value)
	}
	// Output:
	// 0 0.75
}
