// Package ticks connects Collector components to the gpu extension: it finds the extension and
// builds the resource of a tick.
package ticks

import (
	"errors"
	"fmt"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpumeter/gpumeter/internal/node"
)

// Source is an extension that publishes the ticks of a node.View: the gpu extension.
type Source interface {
	Subscribe() (ticks <-chan node.Tick, cancel func())
}

// Find returns the gpu extension of the Collector, nil if there is none.
func Find(host component.Host) (found Source, err error) {
	for _, ext := range host.GetExtensions() {
		s, ok := ext.(Source)
		if ok && found != nil {
			return nil, errors.New("more than one gpu extension configured: a machine has one View of its devices")
		}
		if ok {
			found = s
		}
	}
	return found, nil
}

// Need returns the gpu extension, or an error that names the component who that requires it.
func Need(host component.Host, who string) (Source, error) {
	found, err := Find(host)
	if err == nil && found == nil {
		err = fmt.Errorf("the %s needs the gpu extension: add it under extensions and to service::extensions", who)
	}
	return found, err
}

// Builder is the common part of the ResourceBuilders that mdatagen generates. They omit disabled
// attributes.
type Builder interface {
	SetHostName(string)
	SetServiceName(string)
	SetGpumeterSimulated(bool)
	Emit() pcommon.Resource
}

// Resource returns the resource of the machine of t. It includes attributes of the tick that rb
// does not know.
func Resource(rb Builder, t *node.Tick) pcommon.Resource {
	if t.Host != "" {
		rb.SetHostName(t.Host)
	}
	rb.SetServiceName("gpumeter")
	if t.Simulated {
		rb.SetGpumeterSimulated(true)
	}
	res := rb.Emit()
	for key, value := range t.Resource {
		res.Attributes().PutStr(key, value)
	}
	return res
}
