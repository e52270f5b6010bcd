// Package sigv4 is what prometheus/config names of the signatures of AWS.
package sigv4

import "errors"

// SigV4Config is a setting that nobody can make.
type SigV4Config struct{}

// UnmarshalYAML refuses the setting.
func (*SigV4Config) UnmarshalYAML(func(any) error) error {
	return errors.New("sigv4 is not in this build")
}
