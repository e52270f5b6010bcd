// Package filestorage is the stock file storage extension with a persistent queue that loses no
// request when the process is killed while it starts; see internal/requeue.
package filestorage

import (
	stock "github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage"
	"go.opentelemetry.io/collector/extension"

	"github.com/gpumeter/gpumeter/internal/requeue"
)

// NewFactory returns a factory with the name and the configuration of the stock extension.
func NewFactory() extension.Factory { return requeue.NewFactory(stock.NewFactory()) }
