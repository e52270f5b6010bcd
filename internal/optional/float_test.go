package optional

import (
	"encoding/json"
	"testing"
)

func TestFloat(t *testing.T) {
	var absent Float
	if _, ok := absent.Get(); ok || absent == Of(0) || !absent.IsZero() || Of(0).IsZero() {
		t.Error("absent equals 0")
	}
	if absent.Scale(2).OK() || absent.Div(2).OK() || absent.Ratio(Of(1)).OK() || Of(1).Ratio(absent).OK() || Of(1).Ratio(Of(0)).OK() {
		t.Error("arithmetic on an absent number returned a present one")
	}
	if Of(14.25).Div(100) != Of(0.1425) || Of(3).Scale(2) != Of(6) || Of(1).Ratio(Of(4)) != Of(0.25) {
		t.Error("arithmetic is wrong")
	}
	if absent.Default(2) != 2 || Of(1).Default(2) != 1 || absent.Or(Of(2)) != Of(2) || Of(1).Or(Of(2)) != Of(1) || Flag(true) != Of(1) || Flag(false) != Of(0) {
		t.Error("Or, Default or Flag is wrong")
	}
}

func TestJSON(t *testing.T) {
	type pair struct {
		A Float `json:"a"`
		B Float `json:"b,omitzero"`
		C Float `json:"c"`
	}
	text, err := json.Marshal(pair{A: Of(0)})
	if err != nil || string(text) != `{"a":0,"c":null}` {
		t.Errorf("%s, %v", text, err)
	}
	var back pair
	if err := json.Unmarshal([]byte(`{"a":1.5,"c":null}`), &back); err != nil || back != (pair{A: Of(1.5)}) {
		t.Errorf("%+v, %v", back, err)
	}
}

// After a counter reset the increase is unknown.
func TestSince(t *testing.T) {
	f := func(after, before, want Float) {
		t.Helper()
		if got := after.Since(before); got != want {
			t.Errorf("%v since %v is %v, want %v", after, before, got, want)
		}
	}
	f(Of(3), Of(1), Of(2))
	f(Of(1), Of(1), Of(0))
	f(Of(1), Of(3), Float{})
	f(Of(1), Float{}, Float{})
	f(Float{}, Of(1), Float{})
}
