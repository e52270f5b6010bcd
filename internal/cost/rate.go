package cost

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
)

func capacityRate(f rateFile) (r rate, err error) {
	switch r.kind = f.Kind; f.Kind {
	case OnDemand, Reserved, Spot:
		if f.Capex != "" || f.Years != "" || f.PerKWh != "" || f.PUE != "" || f.CO2 != "" {
			return r, fmt.Errorf("kind %s takes only per_hour or per_month, and discount", f.Kind)
		}
		r.hour, err = hourly(f.PerHour, f.PerMonth, f.Discount)
		return r, err
	case Owned:
		if f.PerHour != "" || f.PerMonth != "" || f.Discount != "" || f.PerKWh != "" || f.PUE != "" || f.CO2 != "" {
			return r, errors.New("kind owned takes only capex and years; energy is priced under power")
		}
		capex, err := positive(f.Capex)
		if err != nil {
			return r, of("capex", err)
		}
		years, err := positive(f.Years)
		if err != nil {
			return r, of("years", err)
		}
		hours := new(big.Rat).Mul(years, big.NewRat(hoursPerYear, 1))
		r.hour, err = nanoOf(capex.Quo(capex, hours))
		return r, err
	}
	return r, of("kind", fmt.Errorf("%.20q is not one of on_demand, reserved, spot, owned", string(f.Kind)))
}

// hoursPerYear includes leap years. A month has a twelfth of it, 730.5 hours, whatever its
// length: the price of an hour does not depend on the month.
const hoursPerYear = 8766

// hourly returns the price of an hour from a price per hour or per month, less a discount in
// percent.
func hourly(perHour, perMonth, discount string) (Nano, error) {
	field, text, hours := "per_hour", perHour, big.NewRat(1, 1)
	if perMonth != "" {
		if perHour != "" {
			return 0, errors.New("give only one of per_hour and per_month")
		}
		field, text, hours = "per_month", perMonth, big.NewRat(hoursPerYear, 12)
	}
	price, err := decimal(text)
	if err != nil {
		return 0, of(field, err)
	}
	if discount != "" {
		percent, err := decimal(strings.TrimSuffix(discount, "%"))
		if err != nil || percent.Sign() < 0 || percent.Cmp(big.NewRat(100, 1)) > 0 {
			return 0, of("discount", errors.New("must be from 0% to 100%"))
		}
		price.Mul(price, percent.Sub(big.NewRat(1, 1), percent.Quo(percent, big.NewRat(100, 1))))
	}
	n, err := nanoOf(price.Quo(price, hours))
	if err != nil {
		return 0, of(field, err)
	}
	return n, nil
}

func powerRate(f rateFile) (r rate, err error) {
	if f.Kind != "" || f.PerHour != "" || f.PerMonth != "" || f.Discount != "" || f.Capex != "" || f.Years != "" {
		return r, errors.New("power takes only per_kwh, pue and co2_g_per_kwh")
	}
	pue := big.NewRat(1, 1)
	if f.PUE != "" {
		if pue, err = positive(f.PUE); err != nil || pue.Cmp(big.NewRat(1, 1)) < 0 || pue.Cmp(big.NewRat(10, 1)) > 0 {
			return r, of("pue", errors.New("must be from 1 to 10"))
		}
	}
	if f.PerKWh == "" && f.CO2 == "" {
		return r, errors.New("per_kwh or co2_g_per_kwh is required")
	}
	if f.PerKWh != "" {
		n, err := nano(f.PerKWh)
		if err != nil {
			return r, of("per_kwh", err)
		}
		if r.kwh, err = nanoOf(new(big.Rat).Mul(big.NewRat(int64(n), 1e9), pue)); err != nil {
			return r, of("per_kwh", err)
		}
		r.priced = true
	}
	if f.CO2 != "" {
		n, err := nano(f.CO2)
		if err != nil || n > 10_000e9 {
			return r, of("co2_g_per_kwh", errors.New("must be from 0 to 10000"))
		}
		r.carbon = new(big.Int).Quo(new(big.Int).Mul(pue.Num(), big.NewInt(int64(n))), new(big.Int).Mul(pue.Denom(), big.NewInt(1_000_000))).Int64()
		r.emits = true
	}
	return r, nil
}

// positive parses a number above zero.
func positive(text string) (*big.Rat, error) {
	if text == "" {
		return nil, errors.New("missing")
	}
	r, err := decimal(text)
	if err != nil {
		return nil, err
	}
	if r.Sign() <= 0 {
		return nil, errors.New("must be a positive number")
	}
	return r, nil
}
