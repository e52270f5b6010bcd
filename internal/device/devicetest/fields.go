// Package devicetest is for tests of readers and of what is made of their samples.
package devicetest

import (
	"reflect"
	"slices"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Fields returns the paths of what samples have, such as Memory.Used and
// Temperatures.Value, sorted. Identity and names for schedulers are not measured, and
// left out.
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

// keyed are the fields of list members that say what is measured, and the members that
// have nothing but these.
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

// Fill returns a sample with every field set, each number another one, and the paths of
// the numbers. Lists have one member.
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
