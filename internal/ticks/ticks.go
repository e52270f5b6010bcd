// Package ticks connects components of the Collector to the gpu extension: it finds the
// extension, and describes the machine that a tick is about.
package ticks

import (
	"errors"
	"fmt"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpumeter/gpumeter/internal/node"
)

// Source is an extension that has the ticks of a node.View: the gpu extension.
type Source interface {
	Subscribe() (ticks <-chan node.Tick, cancel func())
}

// Find returns the gpu extension of the Collector, nil if there is none.
func Find(host component.Host) (found Source, err error) {
	for _, ext := range host.GetExtensions() {
		s, ok := ext.(Source)
		if ok && found != nil {
			return nil, errors.New("there is more than one gpu extension: a machine has one View of its devices")
		}
		if ok {
			found = s
		}
	}
	return found, nil
}

// Need returns the gpu extension that who cannot do without.
func Need(host component.Host, who string) (Source, error) {
	found, err := Find(host)
	if err == nil && found == nil {
		err = fmt.Errorf("the %s needs the gpu extension: add it under extensions and to service::extensions", who)
	}
	return found, err
}

// Builder is what the ResourceBuilders that mdatagen generates have in common. They leave
// out what the configuration has switched off.
type Builder interface {
	SetHostName(string)
	SetServiceName(string)
	SetGpumeterSimulated(bool)
	Emit() pcommon.Resource
}

// Resource returns the machine that t is about. Attributes of the tick that rb does not know
// are there too.
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
