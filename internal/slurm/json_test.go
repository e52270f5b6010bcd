package slurm

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type member struct {
	ID    Number `json:"id"`
	Name  Line   `json:"name"`
	State Words  `json:"state"`
	Count int    `json:"count"`
}

// Versions write the same value in several forms, and a field of an unexpected type must
// not void the rest of the job.
func TestDecodeList(t *testing.T) {
	f := func(answer, want, wantErr string) {
		t.Helper()
		var got []string
		err := DecodeList(strings.NewReader(answer), "jobs", func(m member) error {
			if m.Name == "stop" {
				return errors.New("enough")
			}
			got = append(got, fmt.Sprintf("%s %s %v", m.ID, m.Name, []string(m.State)))
			return nil
		})
		if diff := cmp.Diff(want, strings.Join(got, "; ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", answer, diff)
		}
		if wantErr == "" && err != nil || wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)) {
			t.Errorf("%s: %v, want %q", answer, err, wantErr)
		}
	}
	f(`{"meta":{"x":[1]},"jobs":[{"id":7,"name":"a\nb","state":"RUNNING"},{"id":{"set":true,"number":8},"state":["A","B"]}],"errors":[]}`, "7 a b [RUNNING]; 8  [A B]", "")
	f(`{"jobs":[{"id":{"set":false,"number":8}},{"id":{"set":true,"infinite":true,"number":8}},{"id":-2},{"id":"9"},{"id":{}}]}`, "  [];   [];   []; 9  [];   []", "")
	f(`{"jobs":[{"id":1,"count":"many","name":"kept"}]}`, "1 kept []", "")
	f(`{"jobs":null}`, "", "")
	f(`{"jobs":7}`, "", "jobs is not a list")
	f(`{}`, "", "answer has no jobs")
	f(`{"errors":[{"error":"away","description":"later"}]}`, "", "away later")
	f(`{"errors":[{"error":"half"}],"jobs":[{"id":1}]}`, "1  []", "half")
	f(`{"jobs":[{"id":1},{"name":"stop"},{"id":2}]}`, "1  []", "enough")
	f(`[]`, "", "not JSON")
	f(`<html>`, "", "not JSON")
	f(`{"jobs":[{"id":1}`, "1  []", "not JSON")
	f(``, "", "not JSON")
}

func FuzzDecodeList(f *testing.F) {
	f.Add([]byte(`{"jobs":[{"id":{"set":true,"number":8},"name":"x","state":["A"]}],"errors":[{"error":"e"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = DecodeList(strings.NewReader(string(b)), "jobs", func(m member) error {
			if strings.ContainsAny(string(m.Name), "\n\x00") {
				t.Errorf("%q has more than one line", m.Name)
			}
			if n, set := m.ID.Get(); set != (m.ID.String() != "") || !set && n != 0 && m.ID.Positive() != "" {
				t.Errorf("%+v", m.ID)
			}
			return nil
		})
		var n Number
		_ = json.Unmarshal(b, &n)
	})
}
