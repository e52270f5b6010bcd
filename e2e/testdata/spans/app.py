# An application without an SDK, which sends OTLP as JSON; see app.go.
import json, os, secrets, sys, urllib.request

for line in sys.stdin:
    t = line.split()
    traces = [secrets.token_hex(16), secrets.token_hex(16)]
    outer = secrets.token_hex(8)
    span = lambda name, trace, id, parent, a, b: {"name": name, "traceId": trace, "spanId": id, "parentSpanId": parent, "kind": 2, "startTimeUnixNano": t[a], "endTimeUnixNano": t[b]}
    body = {"resourceSpans": [{"resource": {"attributes": [
        {"key": "service.name", "value": {"stringValue": "app-py"}}, {"key": "process.pid", "value": {"intValue": str(os.getpid())}},
    ]}, "scopeSpans": [{"spans": [
        span("inner", traces[0], secrets.token_hex(8), outer, 1, 2), span("outer", traces[0], outer, "", 0, 3), span("beside", traces[1], secrets.token_hex(8), "", 2, 3),
    ]}]}]}
    request = urllib.request.Request(f"http://{sys.argv[1]}/v1/traces", json.dumps(body).encode(), {"Content-Type": "application/json"})
    urllib.request.urlopen(request).read()
    print("sent", *traces, flush=True)
