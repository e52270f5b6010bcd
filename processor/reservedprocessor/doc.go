// Package reservedprocessor guards the OTLP receiver that an agent opens to applications. The
// agent forwards their telemetry with its own token, so without a filter every local user could
// write bills, findings and the state of devices in the agent's name.
//
// The processor drops metrics and events whose names belong to gpumeter, drops points and
// records that claim another machine or an inference engine, and sets the resource attributes that identify a machine
// to those of the agent. It passes everything else. It needs the gpu extension, which knows the
// identity of the machine.
package reservedprocessor
