// An application with OpenTelemetry's SDK for Node.js; see app.go.
const { BasicTracerProvider, BatchSpanProcessor } = require('@opentelemetry/sdk-trace-base');
const { OTLPTraceExporter } = require('@opentelemetry/exporter-trace-otlp-proto');
const { resourceFromAttributes } = require('@opentelemetry/resources');
const { trace, ROOT_CONTEXT } = require('@opentelemetry/api');

const exporter = new OTLPTraceExporter({ url: `http://${process.argv[2]}/v1/traces` });
const provider = new BasicTracerProvider({ resource: resourceFromAttributes({ 'service.name': 'app-js', 'process.pid': process.pid }), spanProcessors: [new BatchSpanProcessor(exporter)] });
const tracer = provider.getTracer('app');
const time = (ns) => [Number(BigInt(ns) / 1000000000n), Number(BigInt(ns) % 1000000000n)];
require('readline').createInterface({ input: process.stdin }).on('line', async (line) => {
  const t = line.split(' ').map(time);
  const outer = tracer.startSpan('outer', { startTime: t[0] }, ROOT_CONTEXT);
  const inner = tracer.startSpan('inner', { startTime: t[1] }, trace.setSpan(ROOT_CONTEXT, outer));
  inner.end(t[2]);
  outer.end(t[3]);
  const beside = tracer.startSpan('beside', { startTime: t[2] }, ROOT_CONTEXT);
  beside.end(t[3]);
  await provider.forceFlush();
  console.log('sent', outer.spanContext().traceId, beside.spanContext().traceId);
});
