package encode

import (
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"slices"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/gpumeter/gpumeter/internal/tracer/profile"
)

// writeOTLP writes OTLP profiles, which are in development.
func writeOTLP(w io.Writer, f Format, p *profile.Profile) error {
	marshal := (&pprofile.ProtoMarshaler{}).MarshalProfiles
	if f == OTLPJSON {
		marshal = (&pprofile.JSONMarshaler{}).MarshalProfiles
	}
	b, err := marshal(Profiles(p))
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// Profiles converts a profile to OTLP: a resource for each process, with a profile for each type of value.
func Profiles(p *profile.Profile) pprofile.Profiles {
	out := pprofile.NewProfiles()
	d := dictionary{ProfilesDictionary: out.Dictionary(), strings: map[string]int32{}, functions: map[[2]string]int32{}, locations: map[profile.Frame]int32{}}
	d.text("") // the first entry of each table means none
	d.MappingTable().AppendEmpty()
	d.FunctionTable().AppendEmpty()
	d.LocationTable().AppendEmpty()
	d.LinkTable().AppendEmpty()
	d.AttributeTable().AppendEmpty()
	d.StackTable().AppendEmpty()
	for _, x := range p.Processes {
		r := out.ResourceProfiles().AppendEmpty()
		a := r.Resource().Attributes()
		if p.Host != "" {
			a.PutStr("host.name", p.Host)
		}
		a.PutInt("process.pid", int64(x.PID))
		a.PutStr("process.executable.name", x.Name)
		if x.Python != "" {
			a.PutStr("process.runtime.name", "cpython")
			a.PutStr("process.runtime.version", x.Python)
		}
		for _, name := range slices.Sorted(maps.Keys(x.Workload)) {
			a.PutStr(name, x.Workload[name])
		}
		scope := r.ScopeProfiles().AppendEmpty()
		scope.Scope().SetName("github.com/gpumeter/gpumeter/internal/tracer/profile")
		for i, typ := range [][2]string{{"launches", "{launch}"}, {"gpu", "ns"}, {"wait", "ns"}} {
			one := scope.Profiles().AppendEmpty()
			one.SampleType().SetTypeStrindex(d.text(typ[0]))
			one.SampleType().SetUnitStrindex(d.text(typ[1]))
			one.SetTime(pcommon.NewTimestampFromTime(p.Start))
			one.SetDurationNano(uint64(p.Duration))
			one.SetProfileID(profileID(p, x.PID, typ[0]))
			for j := range p.Samples {
				s := &p.Samples[j]
				if value := values(s)[i]; s.PID == x.PID && value > 0 {
					sample := one.Samples().AppendEmpty()
					sample.SetStackIndex(d.stack(s.Frames))
					sample.Values().Append(value)
				}
			}
		}
	}
	return out
}

// profileID is the same for the same profile.
func profileID(p *profile.Profile, pid uint32, typ string) pprofile.ProfileID {
	sum := sha256.Sum256(fmt.Append(nil, p.Host, p.Start.UnixNano(), pid, typ))
	return pprofile.ProfileID(sum[:16])
}

// dictionary adds to the tables that all profiles share.
type dictionary struct {
	pprofile.ProfilesDictionary

	strings   map[string]int32
	functions map[[2]string]int32
	locations map[profile.Frame]int32
}

func (d *dictionary) text(s string) int32 {
	i, ok := d.strings[s]
	if !ok {
		i = int32(d.StringTable().Len())
		d.StringTable().Append(s)
		d.strings[s] = i
	}
	return i
}

func (d *dictionary) location(f profile.Frame) int32 {
	if i, ok := d.locations[f]; ok {
		return i
	}
	key := [2]string{f.Function, f.File}
	function, ok := d.functions[key]
	if !ok {
		function = int32(d.FunctionTable().Len())
		fn := d.FunctionTable().AppendEmpty()
		fn.SetNameStrindex(d.text(f.Function))
		fn.SetFilenameStrindex(d.text(f.File))
		d.functions[key] = function
	}
	i := int32(d.LocationTable().Len())
	l := d.LocationTable().AppendEmpty()
	line := l.Lines().AppendEmpty()
	line.SetFunctionIndex(function)
	line.SetLine(int64(f.Line))
	kind := d.AttributeTable().AppendEmpty()
	kind.SetKeyStrindex(d.text("profile.frame.type"))
	kind.Value().SetStr(frameTypes[f.Kind])
	l.AttributeIndices().Append(int32(d.AttributeTable().Len() - 1))
	d.locations[f] = i
	return i
}

// frameTypes are values of profile.frame.type; those that OpenTelemetry has no word for are ours.
var frameTypes = map[string]string{
	profile.Python: "cpython", profile.Native: "native", profile.Kernel: "gpu", profile.Wait: "native", profile.Note: "note",
}

func (d *dictionary) stack(frames []profile.Frame) int32 {
	i := int32(d.StackTable().Len())
	s := d.StackTable().AppendEmpty()
	for _, f := range slices.Backward(frames) { // the innermost first
		s.LocationIndices().Append(d.location(f))
	}
	return i
}
