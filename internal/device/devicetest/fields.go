// Package devicetest supports tests of vendor readers and of code that consumes their
// samples. Fields and Fill enumerate the fields of a device.Sample by reflection;
// CheckSources verifies a vendor's sources.txt, from which docs/hardware.md is generated,
// against the fields that the vendor's tests read. Only tests import it.
package devicetest

import (
	"reflect"
	"slices"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Fields returns the sorted paths of the fields that are present in samples, such as
// Memory.Used and Temperatures.Value. Identity and scheduler names are not readings and are
// omitted.
func Fields(samples ...device.Sample) []string {
	found := map[string]bool{}
	for _, s := range samples {
		v := reflect.ValueOf(s)
		for i := range v.NumField() {
			switch name := v.Type().Field(i).Name; name {
			case "ID", "Aliases", "Slice":
			default:
				present(v.Field(i), name, found)
			}
		}
	}
	list := make([]string, 0, len(found))
	for path := range found {
		list = append(list, path)
	}
	slices.Sort(list)
	return list
}

// keyed are the fields of list elements that identify a reading rather than hold one. whole
// are the element types that count as present as a whole.
var (
	keyed = map[string]bool{"Sensor": true, "Event": true, "Scope": true, "Type": true, "Rail": true, "Cause": true, "Name": true, "Lifetime": true, "Location": true, "Spare": true, "Operation": true, "Detail": true}
	whole = map[reflect.Type]bool{reflect.TypeFor[device.Throttle](): true, reflect.TypeFor[device.Latency](): true}
)

func present(v reflect.Value, path string, found map[string]bool) {
	if x, ok := v.Interface().(device.Value); ok {
		if x.OK() {
			found[path] = true
		}
		return
	}
	switch v.Kind() {
	case reflect.String:
		if v.Len() > 0 {
			found[path] = true
		}
	case reflect.Slice:
		for i := range v.Len() {
			if whole[v.Type().Elem()] {
				found[path] = true
				return
			}
			present(v.Index(i), path, found)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && !keyed[f.Name] {
				present(v.Field(i), path+"."+f.Name, found)
			}
		}
	}
}

// Fill returns a sample with every field set, each number different, and the path of each
// number. Lists have one element.
func Fill() (device.Sample, map[float64]string) {
	var s device.Sample
	n := 1000.0
	paths := map[float64]string{}
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		fill(v.Field(i), v.Type().Field(i).Name, &n, paths)
	}
	return s, paths
}

func fill(v reflect.Value, path string, n *float64, paths map[float64]string) {
	switch x := v.Addr().Interface().(type) {
	case *device.Value:
		*n++
		*x = device.Of(*n)
		paths[*n] = path
		return
	case *string:
		*x = "text of " + path
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				fill(v.Field(i), path+"."+f.Name, n, paths)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), path, n, paths)
	}
}
