# The service, its load and its judge; see h200.sh.
#
#   service.py load            serves requests and sends them, prints the phases as JSON
#   service.py neighbor        keeps the GPU busy until it is killed
#   service.py judge PHASES OTLP
import ctypes, http.server, json, os, queue, secrets, subprocess, sys, threading, time, urllib.request

SERVICE, NEIGHBOR = "service", "neighbor"


def name(text):
    """Names this process: processes of one user and name are one workload."""
    ctypes.CDLL(None).prctl(15, text.encode(), 0, 0, 0)  # PR_SET_NAME


class Counter:
    """The driver's energy counter of GPU 0."""

    def __init__(self):
        self.lib = ctypes.CDLL("libnvidia-ml.so.1")
        self.lib.nvmlInit_v2()
        self.device = ctypes.c_void_p()
        assert self.lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device)) == 0

    def joules(self):
        v = ctypes.c_ulonglong()
        assert self.lib.nvmlDeviceGetTotalEnergyConsumption(self.device, ctypes.byref(v)) == 0
        return v.value / 1000


class Work:
    """Matrix products for about a given time on an idle GPU."""

    def __init__(self, seconds):
        import torch

        self.torch = torch
        self.a = torch.randn(8192, 8192, device="cuda", dtype=torch.half)
        self.b = torch.randn(8192, 8192, device="cuda", dtype=torch.half)
        self.n = 20
        self.run()
        began = time.time()
        self.run()
        self.n = max(1, int(self.n * seconds / (time.time() - began)))

    def run(self):
        for _ in range(self.n):
            self.torch.mm(self.a, self.b)
        self.torch.cuda.synchronize()


class Exporter(threading.Thread):
    """Sends spans every two seconds, as an SDK does."""

    def __init__(self):
        super().__init__(daemon=True)
        self.queue, self.stop = queue.Queue(), False

    def run(self):
        while not self.stop or not self.queue.empty():
            time.sleep(2)
            spans = []
            while not self.queue.empty():
                spans.append(self.queue.get())
            if spans:
                self.send(spans)

    def send(self, spans):
        body = {"resourceSpans": [{
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "bench"}}, {"key": "process.pid", "value": {"intValue": str(os.getpid())}}]},
            "scopeSpans": [{"spans": spans}],
        }]}
        request = urllib.request.Request("http://localhost:4318/v1/traces", json.dumps(body).encode(), {"Content-Type": "application/json"})
        for _ in range(30):
            try:
                urllib.request.urlopen(request).read()
                return
            except OSError as e:
                print("cannot send spans yet:", e, file=sys.stderr)
                time.sleep(1)


def load():
    name(SERVICE)
    work, counter, exporter = Work(0.3), Counter(), Exporter()
    exporter.start()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            began = time.time_ns()
            work.run()
            exporter.queue.put({
                "traceId": secrets.token_hex(16), "spanId": secrets.token_hex(8), "name": "POST " + self.path, "kind": 2,
                "startTimeUnixNano": str(began), "endTimeUnixNano": str(time.time_ns()),
            })
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def ask():
        urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{server.server_port}/generate", b"")).read()

    phases = []

    def phase(what, n):
        before, began = counter.joules(), time.time_ns()
        for _ in range(n):
            ask()
        phases.append({"name": what, "from": began, "to": time.time_ns(), "requests": n, "joules": counter.joules() - before})

    for _ in range(10):  # the agent sees the process
        ask()
    phase("alone", 100)
    neighbor = subprocess.Popen([sys.executable, __file__, "neighbor"], stdout=subprocess.PIPE)
    neighbor.stdout.readline()  # it has begun
    time.sleep(2)
    phase("shared", 60)
    neighbor.kill()
    neighbor.wait()
    time.sleep(3)
    phase("alone again", 40)
    time.sleep(3)
    exporter.stop = True
    exporter.join()
    json.dump(phases, sys.stdout)


def neighbor():
    name(NEIGHBOR)
    work = Work(0.1)
    print("begun", flush=True)
    while True:
        work.run()


def value(v):
    kind, x = next(iter(v.items()))
    if kind == "arrayValue":
        return [value(e) for e in x.get("values", [])]
    if kind == "kvlistValue":
        return attributes(x.get("values", []))
    return int(x) if kind == "intValue" else x


def attributes(list):
    return {a["key"]: value(a["value"]) for a in list}


def judge(phases, otlp):
    phases = json.load(open(phases))
    spans, slow = [], []
    for line in open(otlp):
        batch = json.loads(line)
        for r in batch.get("resourceSpans", []):
            for s in r["scopeSpans"]:
                for x in s["spans"]:
                    spans.append((int(x["startTimeUnixNano"]), int(x["endTimeUnixNano"]), attributes(x.get("attributes", [])), [e["name"] for e in x.get("events", [])]))
        for r in batch.get("resourceLogs", []):
            for s in r["scopeLogs"]:
                for x in s["logRecords"]:
                    if x.get("eventName") == "gpu.slow_span":
                        slow.append((int(x["timeUnixNano"]), attributes(x["attributes"]), x["body"]["stringValue"]))
    failed = False

    def claim(text, ok):
        nonlocal failed
        failed = failed or not ok
        print(("ok    " if ok else "FAILED"), text)

    for p in phases:
        mine = [s for s in spans if s[0] >= p["from"] and s[1] <= p["to"]]
        records = [s for s in slow if p["from"] <= s[0] <= p["to"]]
        joules = sum(s[2].get("gpu.span.energy", 0) for s in mine)
        named = sum(NEIGHBOR in s[2].get("gpu.span.neighbours", []) for s in mine)
        took = sorted((s[1] - s[0]) / 1e9 for s in mine)
        basis = {b: sum(s[2].get("gpu.span.energy.basis") == b for s in mine) for b in ("counter", "power")}
        print(f"\n{p['name']}: {len(mine)} spans, median {took[len(took) // 2]:.3f} s; {joules:.1f} J in spans, {p['joules']:.1f} J by the driver's counter ({100 * (joules / p['joules'] - 1):+.2f} %); basis {basis}")
        print(f"       {named} spans name the neighbor; {len(records)} gpu.slow_span" + (f", such as: {records[len(records) // 2][2]}" if records else ""))
        claim("every request has a span with its GPU", len(mine) == p["requests"] and all("gpu.uuid" in s[2] for s in mine))
        if p["name"] == "shared":
            claim("most spans name the neighbor", named >= 0.8 * len(mine))
            claim("most spans have the event gpu_neighbour", sum("gpu_neighbour" in s[3] for s in mine) >= 0.8 * len(mine))
            claim("gpu.slow_span names the neighbor", any(NEIGHBOR in r[1].get("gpu.span.neighbours", []) and r[1]["cause"] == "neighbour" for r in records))
        else:
            quiet = [r for r in records if r[0] > p["from"] + 2e9 or p["name"] == "alone"]
            claim("a quiet run names nobody", named <= 0.05 * len(mine) and not any(r[1].get("gpu.span.neighbours") for r in quiet))
        if p["name"] == "alone":
            claim("the joules of 100 spans are those of the counter within 2 %", abs(joules / p["joules"] - 1) <= 0.02)
        for r in records:
            shares = r[1]["gpu.slow_span.unexplained"] + sum(e["share"] for e in r[1]["gpu.slow_span.explanations"])
            if abs(shares - 1) > 1e-6:
                claim(f"shares add up to 1, not {shares}", False)
    sys.exit(failed)


if __name__ == "__main__":
    {"load": load, "neighbor": neighbor, "judge": judge}[sys.argv[1]](*sys.argv[2:])
