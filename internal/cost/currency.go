package cost

import (
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"time"
)

// currencies are the active codes of ISO 4217 (list one, published 2025-05-12), without metals,
// bond units and codes for testing. XXX is no currency: internal credits.
const currencies = " AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE CHF CHW CLF CLP CNY COP COU CRC CUP CVE CZK " +
	"DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ GYD HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT " +
	"LAK LBP LKR LRD LSL LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG QAR RON RSD RUB RWF " +
	"SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX USD USN UYI UYU UYW UZS VED VES VND VUV WST XAD XAF XCD XCG XDR XOF XPF XSU XUA XXX " +
	"YER ZAR ZMW ZWG "

// currencyCode checks a currency.
func currencyCode(code string) error {
	known := func(c string) bool { return len(c) == 3 && strings.Contains(currencies, " "+c+" ") }
	switch upper := strings.ToUpper(code); {
	case code == "":
		return errors.New("missing: add the currency of the prices, such as currency: EUR")
	case known(code):
		return nil
	case known(upper):
		return fmt.Errorf("%.20q is not a currency code: did you mean %s?", code, upper)
	}
	return fmt.Errorf("%.20q is not a currency code of ISO 4217, such as EUR or USD; XXX is for credits that are no currency", code)
}

type exchangeFile struct {
	From string `yaml:"from"`
	Rate string `yaml:"rate"`
}

// exchangeRate is the value of one unit of another currency in the currency of the file.
type exchangeRate struct {
	from time.Time
	rate *big.Rat
}

// maxExpanded bounds the rates of a rule after they were divided where exchange rates change.
const maxExpanded = 100_000

// readExchange reads the key exchange.
func (f *reader) readExchange(table map[string][]exchangeFile) error {
	f.exchange = map[string][]exchangeRate{}
	for _, code := range slices.Sorted(maps.Keys(table)) {
		list := table[code]
		if err := currencyCode(code); err != nil {
			return f.doc.at(of(code, err), "exchange")
		}
		if code == f.currency {
			return f.doc.at(of(code, errors.New("is the currency of the file")), "exchange")
		}
		if len(list) == 0 || len(list) > maxRates {
			return f.doc.at(fmt.Errorf("must have 1 to %d entries", maxRates), "exchange", code)
		}
		for i, e := range list {
			begin, err := f.day(e.From)
			if err != nil {
				return f.doc.at(of("from", err), "exchange", code, i)
			}
			rate, err := positive(e.Rate)
			if err != nil {
				return f.doc.at(of("rate", err), "exchange", code, i)
			}
			if slices.ContainsFunc(f.exchange[code], func(x exchangeRate) bool { return x.from.Equal(begin) }) {
				return f.doc.at(fmt.Errorf("two rates start at %s", begin.Format(time.RFC3339)), "exchange", code, i)
			}
			f.exchange[code] = append(f.exchange[code], exchangeRate{begin, rate})
		}
		slices.SortFunc(f.exchange[code], func(a, b exchangeRate) int { return a.from.Compare(b.from) })
	}
	return nil
}

// convert returns the rates of a rule in the currency of the file. A rate in another currency is
// divided where the exchange rate changes, so that an exchange rate, like a price, applies from its
// date.
func (f *reader) convert(rates []rate) ([]rate, error) {
	var out []rate
	for i, r := range rates {
		if r.currency == "" || r.currency == f.currency {
			out = append(out, r)
			continue
		}
		fail := func(err error) ([]rate, error) { return nil, &rateError{r.place, of("currency", err)} }
		if err := currencyCode(r.currency); err != nil {
			return fail(err)
		}
		list := f.exchange[r.currency]
		if len(list) == 0 {
			return fail(fmt.Errorf("the file is in %s and has no exchange rate of %s: add exchange: {%s: [{from: %s, rate: ...}]}", f.currency, r.currency, r.currency, r.from.Format(time.DateOnly)))
		}
		end := r.to
		if end.IsZero() && i+1 < len(rates) {
			end = rates[i+1].from
		}
		if list[0].from.After(r.from) {
			return fail(fmt.Errorf("the exchange rates of %s begin at %s, after this rate", r.currency, list[0].from.Format(time.RFC3339)))
		}
		for j, x := range list {
			if j+1 < len(list) && !list[j+1].from.After(r.from) {
				continue // over when the rate begins
			}
			if !end.IsZero() && !x.from.Before(end) {
				break
			}
			part := r
			part.exchange = x.rate
			if x.from.After(r.from) {
				part.from = x.from
			}
			var err error
			if part.hour, err = exchanged(r.hour, x.rate); err == nil {
				part.kwh, err = exchanged(r.kwh, x.rate)
			}
			if err != nil {
				return fail(fmt.Errorf("in %s: %w", f.currency, err))
			}
			if j+1 < len(list) && (end.IsZero() || list[j+1].from.Before(end)) {
				part.to = time.Time{} // the next part follows
			}
			if out = append(out, part); len(out) > maxExpanded {
				return fail(errors.New("the exchange rate changes too often"))
			}
		}
	}
	return out, nil
}

func exchanged(n Nano, rate *big.Rat) (Nano, error) {
	return nanoOf(new(big.Rat).Mul(big.NewRat(int64(n), 1e9), rate))
}
