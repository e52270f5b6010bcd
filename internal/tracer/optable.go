package tracer

// Ops lists all operations by ID. Names and arguments are those of cuda.h and nccl.h.
// Trivial calls that are made several times per launch, such as cuCtxGetDevice, are left out:
// a probe would cost more than the call.
var Ops = numbered([]Op{
	// Work.
	{Name: "cuLaunchKernel", Class: Launch, Symbols: []string{"cuLaunchKernel", "cuLaunchKernel_ptsz"}, Body: BodyLaunch},
	{Name: "cuLaunchKernelEx", Class: Launch, Symbols: []string{"cuLaunchKernelEx", "cuLaunchKernelEx_ptsz"}, Body: BodyLaunchEx},
	{Name: "cuLaunchCooperativeKernel", Class: Launch, Symbols: []string{"cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel_ptsz"}, Body: BodyLaunch},
	{Name: "cuGraphLaunch", Class: Graph, Symbols: []string{"cuGraphLaunch", "cuGraphLaunch_ptsz"}, Body: BodyWork, Args: Args{Stream: 2}},

	// Graphs.
	{Name: "cuStreamBeginCapture", Class: Graph, Symbols: []string{
		"cuStreamBeginCapture", "cuStreamBeginCapture_ptsz", "cuStreamBeginCapture_v2", "cuStreamBeginCapture_v2_ptsz",
		"cuStreamBeginCaptureToGraph", "cuStreamBeginCaptureToGraph_ptsz",
	}, Body: BodyCapture, Args: Args{Stream: 1, Variant: 1}},
	{Name: "cuStreamEndCapture", Class: Graph, Symbols: []string{"cuStreamEndCapture", "cuStreamEndCapture_ptsz"}, Body: BodyCapture, Args: Args{Stream: 1, Variant: 2}},
	{Name: "cuGraphInstantiate", Class: Graph, Symbols: []string{
		"cuGraphInstantiate", "cuGraphInstantiate_v2", "cuGraphInstantiateWithFlags", "cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz",
	}, Body: BodyCall},
	{Name: "cuGraphExecUpdate", Class: Graph, Symbols: []string{"cuGraphExecUpdate", "cuGraphExecUpdate_v2"}, Body: BodyCall},

	// Copies.
	{Name: "cuMemcpyHtoD", Class: Copy, Symbols: []string{"cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2_ptds"}, Body: BodyCopy, Args: Args{Bytes: 3, Kind: HtoD}},
	{Name: "cuMemcpyDtoH", Class: Copy, Symbols: []string{"cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2_ptds"}, Body: BodyCopy, Args: Args{Bytes: 3, Kind: DtoH}},
	{Name: "cuMemcpyDtoD", Class: Copy, Symbols: []string{"cuMemcpyDtoD_v2", "cuMemcpyDtoD_v2_ptds"}, Body: BodyCopy, Args: Args{Bytes: 3, Kind: DtoD}},
	{Name: "cuMemcpyHtoDAsync", Class: Copy, Symbols: []string{"cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync_v2_ptsz"}, Body: BodyCopy, Args: Args{Bytes: 3, Stream: 4, Kind: HtoD}},
	{Name: "cuMemcpyDtoHAsync", Class: Copy, Symbols: []string{"cuMemcpyDtoHAsync_v2", "cuMemcpyDtoHAsync_v2_ptsz"}, Body: BodyCopy, Args: Args{Bytes: 3, Stream: 4, Kind: DtoH}},
	{Name: "cuMemcpyDtoDAsync", Class: Copy, Symbols: []string{"cuMemcpyDtoDAsync_v2", "cuMemcpyDtoDAsync_v2_ptsz"}, Body: BodyCopy, Args: Args{Bytes: 3, Stream: 4, Kind: DtoD}},
	{Name: "cuMemcpy", Class: Copy, Symbols: []string{"cuMemcpy", "cuMemcpy_ptds"}, Body: BodyCopy, Args: Args{Bytes: 3, Kind: Default}},
	{Name: "cuMemcpyAsync", Class: Copy, Symbols: []string{"cuMemcpyAsync", "cuMemcpyAsync_ptsz"}, Body: BodyCopy, Args: Args{Bytes: 3, Stream: 4, Kind: Default}},
	{Name: "cuMemcpyPeer", Class: Copy, Symbols: []string{"cuMemcpyPeer", "cuMemcpyPeer_ptds"}, Body: BodyCopy, Args: Args{Bytes: 5, Kind: Peer}},
	{Name: "cuMemcpyPeerAsync", Class: Copy, Symbols: []string{"cuMemcpyPeerAsync", "cuMemcpyPeerAsync_ptsz"}, Body: BodyCopy, Args: Args{Bytes: 5, Stream: 6, Kind: Peer}},
	{Name: "cuMemcpy2D", Class: Copy, Symbols: []string{
		"cuMemcpy2D_v2", "cuMemcpy2D_v2_ptds", "cuMemcpy2DUnaligned_v2", "cuMemcpy2DUnaligned_v2_ptds",
	}, Body: BodyCopyStruct, Args: Args{Pointer: 1, Variant: 2}},
	{Name: "cuMemcpy2DAsync", Class: Copy, Symbols: []string{"cuMemcpy2DAsync_v2", "cuMemcpy2DAsync_v2_ptsz"}, Body: BodyCopyStruct, Args: Args{Pointer: 1, Stream: 2, Variant: 2}},
	{Name: "cuMemcpy3D", Class: Copy, Symbols: []string{"cuMemcpy3D_v2", "cuMemcpy3D_v2_ptds"}, Body: BodyCopyStruct, Args: Args{Pointer: 1, Variant: 3}},
	{Name: "cuMemcpy3DAsync", Class: Copy, Symbols: []string{"cuMemcpy3DAsync_v2", "cuMemcpy3DAsync_v2_ptsz"}, Body: BodyCopyStruct, Args: Args{Pointer: 1, Stream: 2, Variant: 3}},
	{Name: "cuMemcpy3DPeer", Class: Copy, Symbols: []string{"cuMemcpy3DPeer", "cuMemcpy3DPeer_ptds"}, Body: BodyCopyStruct, Args: Args{Pointer: 1, Variant: 3, Kind: Peer}},
	{Name: "cuMemcpy3DPeerAsync", Class: Copy, Symbols: []string{"cuMemcpy3DPeerAsync", "cuMemcpy3DPeerAsync_ptsz"}, Body: BodyCopyStruct, Args: Args{Pointer: 1, Stream: 2, Variant: 3, Kind: Peer}},
	{Name: "cuMemcpyBatchAsync", Class: Copy, Symbols: []string{
		"cuMemcpyBatchAsync", "cuMemcpyBatchAsync_ptsz", "cuMemcpyBatchAsync_v2", "cuMemcpyBatchAsync_v2_ptsz",
	}, Body: BodyCopyBatch, Args: Args{Pointer: 3, Times: 4, Kind: Default}},

	// Memsets.
	{Name: "cuMemsetD8", Class: Set, Symbols: []string{"cuMemsetD8_v2", "cuMemsetD8_v2_ptds"}, Body: BodySet, Args: Args{Bytes: 3}},
	{Name: "cuMemsetD16", Class: Set, Symbols: []string{"cuMemsetD16_v2", "cuMemsetD16_v2_ptds"}, Body: BodySet, Args: Args{Bytes: 3, Shift: 1}},
	{Name: "cuMemsetD32", Class: Set, Symbols: []string{"cuMemsetD32_v2", "cuMemsetD32_v2_ptds"}, Body: BodySet, Args: Args{Bytes: 3, Shift: 2}},
	{Name: "cuMemsetD8Async", Class: Set, Symbols: []string{"cuMemsetD8Async", "cuMemsetD8Async_ptsz"}, Body: BodySet, Args: Args{Bytes: 3, Stream: 4}},
	{Name: "cuMemsetD16Async", Class: Set, Symbols: []string{"cuMemsetD16Async", "cuMemsetD16Async_ptsz"}, Body: BodySet, Args: Args{Bytes: 3, Stream: 4, Shift: 1}},
	{Name: "cuMemsetD32Async", Class: Set, Symbols: []string{"cuMemsetD32Async", "cuMemsetD32Async_ptsz"}, Body: BodySet, Args: Args{Bytes: 3, Stream: 4, Shift: 2}},
	{Name: "cuMemsetD2D8", Class: Set, Symbols: []string{"cuMemsetD2D8_v2", "cuMemsetD2D8_v2_ptds"}, Body: BodySet, Args: Args{Bytes: 4, Times: 5}},
	{Name: "cuMemsetD2D16", Class: Set, Symbols: []string{"cuMemsetD2D16_v2", "cuMemsetD2D16_v2_ptds"}, Body: BodySet, Args: Args{Bytes: 4, Times: 5, Shift: 1}},
	{Name: "cuMemsetD2D32", Class: Set, Symbols: []string{"cuMemsetD2D32_v2", "cuMemsetD2D32_v2_ptds"}, Body: BodySet, Args: Args{Bytes: 4, Times: 5, Shift: 2}},
	{Name: "cuMemsetD2D8Async", Class: Set, Symbols: []string{"cuMemsetD2D8Async", "cuMemsetD2D8Async_ptsz"}, Body: BodySet, Args: Args{Bytes: 4, Times: 5, Stream: 6}},
	{Name: "cuMemsetD2D16Async", Class: Set, Symbols: []string{"cuMemsetD2D16Async", "cuMemsetD2D16Async_ptsz"}, Body: BodySet, Args: Args{Bytes: 4, Times: 5, Stream: 6, Shift: 1}},
	{Name: "cuMemsetD2D32Async", Class: Set, Symbols: []string{"cuMemsetD2D32Async", "cuMemsetD2D32Async_ptsz"}, Body: BodySet, Args: Args{Bytes: 4, Times: 5, Stream: 6, Shift: 2}},

	// Memory.
	{Name: "cuMemAlloc", Class: Alloc, Symbols: []string{"cuMemAlloc_v2"}, Body: BodyAlloc, Args: Args{Pointer: 1, Bytes: 2, Variant: MemoryDevice}},
	{Name: "cuMemAllocPitch", Class: Alloc, Symbols: []string{"cuMemAllocPitch_v2"}, Body: BodyAlloc, Args: Args{Pointer: 1, Aux: 2, Times: 4, Variant: MemoryPitch}},
	{Name: "cuMemAllocManaged", Class: Alloc, Symbols: []string{"cuMemAllocManaged"}, Body: BodyAlloc, Args: Args{Pointer: 1, Bytes: 2, Variant: MemoryManaged}},
	{Name: "cuMemAllocAsync", Class: Alloc, Symbols: []string{"cuMemAllocAsync", "cuMemAllocAsync_ptsz"}, Body: BodyAlloc, Args: Args{Pointer: 1, Bytes: 2, Stream: 3, Variant: MemoryPool}},
	{Name: "cuMemAllocFromPoolAsync", Class: Alloc, Symbols: []string{"cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz"}, Body: BodyAlloc, Args: Args{Pointer: 1, Bytes: 2, Stream: 4, Variant: MemoryPool}},
	{Name: "cuMemCreate", Class: Alloc, Symbols: []string{"cuMemCreate"}, Body: BodyAlloc, Args: Args{Pointer: 1, Bytes: 2, Aux: 3, Variant: MemoryHandle}},
	{Name: "cuMemHostAlloc", Class: Alloc, Symbols: []string{"cuMemHostAlloc"}, Body: BodyAlloc, Args: Args{Pointer: 1, Bytes: 2, Variant: MemoryHost}},
	{Name: "cuMemAllocHost", Class: Alloc, Symbols: []string{"cuMemAllocHost_v2"}, Body: BodyAlloc, Args: Args{Pointer: 1, Bytes: 2, Variant: MemoryHost}},
	{Name: "cuMemFree", Class: Free, Symbols: []string{"cuMemFree_v2"}, Body: BodyFree, Args: Args{Pointer: 1, Variant: MemoryDevice}},
	{Name: "cuMemFreeAsync", Class: Free, Symbols: []string{"cuMemFreeAsync", "cuMemFreeAsync_ptsz"}, Body: BodyFree, Args: Args{Pointer: 1, Stream: 2, Variant: MemoryDevice}},
	{Name: "cuMemRelease", Class: Free, Symbols: []string{"cuMemRelease"}, Body: BodyFree, Args: Args{Pointer: 1, Variant: MemoryHandle}},
	{Name: "cuMemMap", Symbols: []string{"cuMemMap"}, Body: BodyMap, Quiet: true, Args: Args{Pointer: 1, Bytes: 2, Aux: 4}},
	{Name: "cuMemUnmap", Symbols: []string{"cuMemUnmap"}, Body: BodyUnmap, Quiet: true, Args: Args{Pointer: 1, Bytes: 2}},
	{Name: "cuMemPoolSetAttribute", Symbols: []string{"cuMemPoolSetAttribute"}, Body: BodyPool, Quiet: true, Args: Args{Pointer: 3, Aux: 2, Variant: 1}},
	{Name: "cuMemPoolTrimTo", Symbols: []string{"cuMemPoolTrimTo"}, Body: BodyPool, Quiet: true, Args: Args{Pointer: 2, Variant: 2}},
	{Name: "cuMemFreeHost", Class: Free, Symbols: []string{"cuMemFreeHost"}, Body: BodyFree, Args: Args{Pointer: 1, Variant: MemoryHost}},

	// Synchronization.
	{Name: "cuStreamSynchronize", Class: Sync, Symbols: []string{"cuStreamSynchronize", "cuStreamSynchronize_ptsz"}, Body: BodySync, Args: Args{Stream: 1, Variant: SyncStream}},
	{Name: "cuCtxSynchronize", Class: Sync, Symbols: []string{"cuCtxSynchronize", "cuCtxSynchronize_v2"}, Body: BodySync, Args: Args{Variant: SyncContext}},
	{Name: "cuEventSynchronize", Class: Sync, Symbols: []string{"cuEventSynchronize"}, Body: BodySync, Args: Args{Pointer: 1, Variant: SyncEvent}},
	{Name: "cuEventRecord", Symbols: []string{
		"cuEventRecord", "cuEventRecord_ptsz", "cuEventRecordWithFlags", "cuEventRecordWithFlags_ptsz",
	}, Body: BodyMark, Quiet: true, Entry: true, Args: Args{Pointer: 1, Stream: 2}},
	{Name: "cuStreamWaitEvent", Symbols: []string{"cuStreamWaitEvent", "cuStreamWaitEvent_ptsz"}, Body: BodyAfter, Quiet: true, Entry: true, Args: Args{Pointer: 2, Stream: 1}},
	{Name: "cuStreamDestroy", Symbols: []string{"cuStreamDestroy", "cuStreamDestroy_v2"}, Body: BodyStreamEnd, Quiet: true, Entry: true, Args: Args{Stream: 1}},

	// Code and its names.
	{Name: "cuModuleLoad", Class: Load, Symbols: []string{"cuModuleLoad"}, Body: BodyCall},
	{Name: "cuModuleLoadData", Class: Load, Symbols: []string{"cuModuleLoadData", "cuModuleLoadDataEx"}, Body: BodyCall},
	{Name: "cuModuleLoadFatBinary", Class: Load, Symbols: []string{"cuModuleLoadFatBinary"}, Body: BodyCall},
	{Name: "cuLibraryLoadData", Class: Load, Symbols: []string{"cuLibraryLoadData"}, Body: BodyCall},
	{Name: "cuLibraryLoadFromFile", Class: Load, Symbols: []string{"cuLibraryLoadFromFile"}, Body: BodyCall},
	{Name: "cuLibraryGetKernel", Class: Load, Symbols: []string{"cuLibraryGetKernel"}, Body: BodyName, Args: Args{Pointer: 1, Aux: 3}},
	{Name: "cuModuleGetFunction", Class: Load, Symbols: []string{"cuModuleGetFunction"}, Body: BodyName, Args: Args{Pointer: 1, Aux: 3}},
	{Name: "cuKernelGetFunction", Class: Load, Symbols: []string{"cuKernelGetFunction"}, Body: BodyAlias, Args: Args{Pointer: 1, Aux: 2}},
	{Name: "cuFuncGetName", Symbols: []string{"cuFuncGetName", "cuKernelGetName"}, Body: BodyNameOf, Quiet: true, Args: Args{Pointer: 1, Aux: 2}},

	// Devices.
	{Name: "cuDeviceGetUuid", Symbols: []string{"cuDeviceGetUuid"}, Body: BodyUUID, Quiet: true, Args: Args{Pointer: 1, Aux: 2, Variant: 1}},
	{Name: "cuDeviceGetUuid_v2", Symbols: []string{"cuDeviceGetUuid_v2"}, Body: BodyUUID, Quiet: true, Args: Args{Pointer: 1, Aux: 2, Variant: 2}},
	{Name: "cuDevicePrimaryCtxRetain", Class: Load, Symbols: []string{"cuDevicePrimaryCtxRetain"}, Body: BodyContext, Args: Args{Pointer: 1, Aux: 2}},
	{Name: "cuCtxCreate", Class: Load, Symbols: []string{"cuCtxCreate_v2"}, Body: BodyContext, Args: Args{Pointer: 1, Aux: 3, Variant: 1}},
	{Name: "cuCtxCreate_v3", Class: Load, Symbols: []string{"cuCtxCreate_v3"}, Body: BodyContext, Args: Args{Pointer: 1, Aux: 5, Variant: 1}},
	{Name: "cuCtxCreate_v4", Class: Load, Symbols: []string{"cuCtxCreate_v4"}, Body: BodyContext, Args: Args{Pointer: 1, Aux: 4, Variant: 1}},
	{Name: "cuCtxDestroy", Symbols: []string{"cuCtxDestroy", "cuCtxDestroy_v2"}, Body: BodyContextEnd, Quiet: true, Args: Args{Pointer: 1}},
	{Name: "cuDevicePrimaryCtxReset", Symbols: []string{"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2"}, Body: BodyReset, Quiet: true, Args: Args{Aux: 1}},
	{Name: "cuCtxSetCurrent", Symbols: []string{"cuCtxSetCurrent"}, Body: BodyCurrent, Quiet: true, Entry: true, Args: Args{Pointer: 1}},
	{Name: "cuCtxPushCurrent", Symbols: []string{"cuCtxPushCurrent", "cuCtxPushCurrent_v2"}, Body: BodyPush, Quiet: true, Entry: true, Args: Args{Pointer: 1}},
	{Name: "cuCtxPopCurrent", Symbols: []string{"cuCtxPopCurrent", "cuCtxPopCurrent_v2"}, Body: BodyPop, Quiet: true, Entry: true},

	// Collectives.
	{Library: LibraryNCCL, Name: "ncclAllReduce", Class: Coll, Symbols: []string{"ncclAllReduce"}, Body: BodyColl, Args: Args{Bytes: 3, Type: 4, Reduce: 5, Aux: 6, Stream: 7}},
	{Library: LibraryNCCL, Name: "ncclBroadcast", Class: Coll, Symbols: []string{"ncclBroadcast"}, Body: BodyColl, Args: Args{Bytes: 3, Type: 4, Peer: 5, Aux: 6, Stream: 7}},
	{Library: LibraryNCCL, Name: "ncclBcast", Class: Coll, Symbols: []string{"ncclBcast"}, Body: BodyColl, Args: Args{Bytes: 2, Type: 3, Peer: 4, Aux: 5, Stream: 6}},
	{Library: LibraryNCCL, Name: "ncclReduce", Class: Coll, Symbols: []string{"ncclReduce"}, Body: BodyColl, Args: Args{Bytes: 3, Type: 4, Reduce: 5, Peer: 6, Aux: 7, Stream: 8}},
	{Library: LibraryNCCL, Name: "ncclAllGather", Class: Coll, Symbols: []string{"ncclAllGather"}, Body: BodyColl, Args: Args{Bytes: 3, Type: 4, Aux: 5, Stream: 6}},
	{Library: LibraryNCCL, Name: "ncclReduceScatter", Class: Coll, Symbols: []string{"ncclReduceScatter"}, Body: BodyColl, Args: Args{Bytes: 3, Type: 4, Reduce: 5, Aux: 6, Stream: 7}},
	{Library: LibraryNCCL, Name: "ncclAlltoAll", Class: Coll, Symbols: []string{"ncclAlltoAll"}, Body: BodyColl, Args: Args{Bytes: 3, Type: 4, Aux: 5, Stream: 6}},
	{Library: LibraryNCCL, Name: "ncclGather", Class: Coll, Symbols: []string{"ncclGather"}, Body: BodyColl, Args: Args{Bytes: 3, Type: 4, Peer: 5, Aux: 6, Stream: 7}},
	{Library: LibraryNCCL, Name: "ncclScatter", Class: Coll, Symbols: []string{"ncclScatter"}, Body: BodyColl, Args: Args{Bytes: 3, Type: 4, Peer: 5, Aux: 6, Stream: 7}},
	{Library: LibraryNCCL, Name: "ncclSend", Class: Coll, Symbols: []string{"ncclSend"}, Body: BodyColl, Args: Args{Bytes: 2, Type: 3, Peer: 4, Aux: 5, Stream: 6, Variant: CollPair}},
	{Library: LibraryNCCL, Name: "ncclRecv", Class: Coll, Symbols: []string{"ncclRecv"}, Body: BodyColl, Args: Args{Bytes: 2, Type: 3, Peer: 4, Aux: 5, Stream: 6, Variant: CollPair}},
	{Library: LibraryNCCL, Name: "ncclGroupEnd", Class: Coll, Symbols: []string{"ncclGroupEnd"}, Body: BodyCall},

	// Communicators. The unique id is passed by value, so the positions of the last two
	// arguments of the first operation do not apply.
	{Library: LibraryNCCL, Name: "ncclCommInitRank", Class: Load, Symbols: []string{"ncclCommInitRank", "ncclCommInitRankConfig"}, Body: BodyInit, Args: Args{Pointer: 1, Times: 2}},
	{Library: LibraryNCCL, Name: "ncclCommInitRankScalable", Class: Load, Symbols: []string{"ncclCommInitRankScalable"}, Body: BodyScalable, Args: Args{Pointer: 1, Times: 2, Peer: 3, Aux: 5}},
	{Library: LibraryNCCL, Name: "ncclCommInitAll", Class: Load, Symbols: []string{"ncclCommInitAll"}, Body: BodyInitAll, Args: Args{Pointer: 1, Times: 2, Aux: 3}},
	{Library: LibraryNCCL, Name: "ncclCommSplit", Class: Load, Symbols: []string{"ncclCommSplit"}, Body: BodySplit, Args: Args{Aux: 1, Peer: 2, Pointer: 4}},
	{Library: LibraryNCCL, Name: "ncclCommDestroy", Class: Load, Symbols: []string{"ncclCommDestroy"}, Body: BodyCommEnd, Args: Args{Aux: 1, Variant: 1}},
	{Library: LibraryNCCL, Name: "ncclCommFinalize", Class: Load, Symbols: []string{"ncclCommFinalize"}, Body: BodyCommEnd, Args: Args{Aux: 1, Variant: 1}},
	{Library: LibraryNCCL, Name: "ncclCommAbort", Class: Load, Symbols: []string{"ncclCommAbort"}, Body: BodyCommEnd, Args: Args{Aux: 1, Variant: 2}},
	{Library: LibraryNCCL, Name: "ncclCommUserRank", Symbols: []string{"ncclCommUserRank"}, Body: BodyCommAsk, Quiet: true, Args: Args{Aux: 1, Pointer: 2, Variant: 1}},
	{Library: LibraryNCCL, Name: "ncclCommCount", Symbols: []string{"ncclCommCount"}, Body: BodyCommAsk, Quiet: true, Args: Args{Aux: 1, Pointer: 2, Variant: 2}},
	{Library: LibraryNCCL, Name: "ncclCommCuDevice", Symbols: []string{"ncclCommCuDevice"}, Body: BodyCommAsk, Quiet: true, Args: Args{Aux: 1, Pointer: 2, Variant: 3}},

	// c10::reportMemoryUsageToProfiler(void *, int64_t, size_t, size_t, c10::Device).
	{Library: LibraryTorch, Name: "reportMemoryUsageToProfiler", Symbols: []string{"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"}, Body: BodyTorch, Quiet: true, Entry: true},
})

// numbered sets the fields that follow from the position of a row.
func numbered(ops []Op) []Op {
	for i := range ops {
		ops[i].ID = uint8(i + 1)
		if ops[i].Library == "" {
			ops[i].Library = LibraryCUDA
		}
	}
	return ops
}
