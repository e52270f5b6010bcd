package dra

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Claim is a ResourceClaim.
type Claim struct {
	Namespace, Name string
	Created         time.Time
	Requests        []Request
	Allocated       bool
	Results         []Result // of an allocated claim
	// Users are the UIDs of the pods that may use the devices.
	Users []string
}

// Key returns NAMESPACE/NAME.
func (c *Claim) Key() string { return c.Namespace + "/" + c.Name }

// Request is a part of a claim: some devices of a class.
type Request struct {
	Name, Class string
	// Others are the classes of the alternatives, by name.
	Others map[string]string
	// Count is how many devices are asked for. A request for all of a node counts as one: how many they are is only known
	// when it is allocated.
	Count int64
	Admin bool // looks after devices that others hold, and takes none
	Part  bool // asks for a capacity, which is a part of a device
}

// Result is a device that was allocated for a request.
type Result struct {
	Request string // the name, or NAME/ALTERNATIVE
	Device  Address
	Admin   bool
	Part    bool // others may have other parts of the device
}

// class returns the class that a result was allocated from, empty if it is not known.
func (c *Claim) class(of *Result) string {
	name, alternative, _ := strings.Cut(of.Request, "/")
	for i := range c.Requests {
		if r := &c.Requests[i]; r.Name == name {
			return cmp.Or(r.Others[alternative], r.Class)
		}
	}
	return ""
}

// Address names a device.
type Address struct{ Driver, Pool, Device string }

// Limits of one object. The API allows 32 requests and results, and 128 devices.
const (
	maxParts   = 128
	maxDevices = 4096
)

type requestObject struct {
	Name     string `json:"name"`
	Class    string `json:"deviceClassName"`
	Mode     string `json:"allocationMode"`
	Count    int64  `json:"count"`
	Admin    bool   `json:"adminAccess"`
	Capacity struct {
		Requests map[string]json.RawMessage `json:"requests"`
	} `json:"capacity"`
}

type claimObject struct {
	Metadata struct {
		Namespace         string    `json:"namespace"`
		Name              string    `json:"name"`
		CreationTimestamp time.Time `json:"creationTimestamp"`
	} `json:"metadata"`
	Spec struct {
		Devices struct {
			Requests []struct {
				requestObject                  // v1beta1
				Exactly        requestObject   `json:"exactly"`
				FirstAvailable []requestObject `json:"firstAvailable"`
			} `json:"requests"`
		} `json:"devices"`
	} `json:"spec"`
	Status struct {
		Allocation *struct {
			Devices struct {
				Results []struct {
					Request  string                     `json:"request"`
					Driver   string                     `json:"driver"`
					Pool     string                     `json:"pool"`
					Device   string                     `json:"device"`
					Admin    bool                       `json:"adminAccess"`
					ShareID  string                     `json:"shareID"`
					Consumed map[string]json.RawMessage `json:"consumedCapacity"`
				} `json:"results"`
			} `json:"devices"`
		} `json:"allocation"`
		ReservedFor []struct {
			Resource string `json:"resource"`
			UID      string `json:"uid"`
		} `json:"reservedFor"`
	} `json:"status"`
}

// ParseClaim reads a ResourceClaim.
func ParseClaim(b []byte) (Claim, error) {
	var o claimObject
	if err := json.Unmarshal(b, &o); err != nil {
		return Claim{}, fmt.Errorf("claim cannot be parsed: %w", err)
	}
	c := Claim{Namespace: o.Metadata.Namespace, Name: o.Metadata.Name, Created: o.Metadata.CreationTimestamp}
	if c.Name == "" {
		return Claim{}, errors.New("claim cannot be parsed: no name")
	}
	if len(o.Spec.Devices.Requests) > maxParts {
		return Claim{}, fmt.Errorf("claim %s has %d requests", c.Key(), len(o.Spec.Devices.Requests))
	}
	for _, r := range o.Spec.Devices.Requests {
		ask, others := r.requestObject, map[string]string(nil)
		switch {
		case r.Exactly.Class != "":
			ask = r.Exactly
		case len(r.FirstAvailable) > 0:
			ask = r.FirstAvailable[0] // what is wanted most
			others = map[string]string{}
			for _, a := range r.FirstAvailable[:min(len(r.FirstAvailable), maxParts)] {
				others[a.Name] = a.Class
			}
		}
		count := ask.Count
		if ask.Mode == "All" || count <= 0 || count > maxDevices {
			count = 1
		}
		c.Requests = append(c.Requests, Request{
			Name: r.Name, Class: ask.Class, Others: others, Count: count, Admin: ask.Admin, Part: len(ask.Capacity.Requests) > 0,
		})
	}
	if a := o.Status.Allocation; a != nil {
		if len(a.Devices.Results) > maxDevices {
			return Claim{}, fmt.Errorf("claim %s has %d devices", c.Key(), len(a.Devices.Results))
		}
		c.Allocated = true
		for _, r := range a.Devices.Results {
			c.Results = append(c.Results, Result{
				Request: r.Request, Device: Address{r.Driver, r.Pool, r.Device}, Admin: r.Admin, Part: r.ShareID != "" || len(r.Consumed) > 0,
			})
		}
	}
	for _, u := range o.Status.ReservedFor {
		if u.Resource == "pods" && u.UID != "" {
			c.Users = append(c.Users, u.UID)
		}
	}
	return c, nil
}
