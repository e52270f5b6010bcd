package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/prometheus/prometheus/tsdb/chunks"
)

// headChunks is what a file of chunks of the newest samples contains.
type headChunks struct {
	index   int
	path    string
	size    int64
	chunks  int
	samples int
	times   times
	// torn is set if the file ends within a chunk, as after a kill.
	torn   bool
	damage error
}

// readHeadChunks examines the chunk files in dir, in order. Every sample in them is also in
// a log.
func readHeadChunks(dir string) ([]headChunks, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []headChunks
	for _, e := range entries {
		if index, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, headChunks{index: index, path: filepath.Join(dir, e.Name())})
		}
	}
	slices.SortFunc(out, func(a, b headChunks) int { return a.index - b.index })
	for i := range out {
		if err := out[i].read(i == len(out)-1); err != nil {
			return nil, err
		}
		if i > 0 && out[i].index != out[i-1].index+1 && out[i].damage == nil {
			out[i].damage = fmt.Errorf("the file before it, %d, is missing", out[i].index-1)
		}
	}
	return out, nil
}

// read examines one file. The last file of a folder may be empty or end anywhere.
func (h *headChunks) read(last bool) error {
	b, err := os.ReadFile(h.path)
	if err != nil {
		return err
	}
	h.size = int64(len(b))
	if len(b) < chunks.HeadChunkFileHeaderSize || binary.BigEndian.Uint32(b) == 0 {
		h.torn = last // the database removes it
		if !last {
			h.damage = errors.New("the file has no header")
		}
		return nil
	}
	if binary.BigEndian.Uint32(b) != chunks.MagicHeadChunks || b[chunks.MagicChunksSize] != 1 {
		h.damage = errors.New("the header of the file is not valid")
		return nil
	}
	const prefix = chunks.SeriesRefSize + 2*chunks.MintMaxtSize
	for i := chunks.HeadChunkFileHeaderSize; i < len(b); {
		rest := b[i:]
		if allZero(rest[:min(len(rest), prefix)]) {
			return nil // the rest was allocated, but not written
		}
		length, n := 0, 0
		if len(rest) >= chunks.MaxHeadChunkMetaSize {
			v, k := binary.Uvarint(rest[prefix+chunks.ChunkEncodingSize:][:chunks.MaxChunkLengthFieldSize])
			length, n = int(min(v, 1<<31)), k
		}
		end := prefix + chunks.ChunkEncodingSize + n + length
		if n <= 0 || length < 2 || end+chunks.CRCSize > len(rest) {
			h.fail(last, i, "the file ends within a chunk")
			return nil
		}
		if crc32.Checksum(rest[:end], castagnoli) != binary.BigEndian.Uint32(rest[end:]) {
			// A chunk that was written in part has zeros at its end.
			h.fail(last && allZero(rest[end:]), i, "the checksum of a chunk is wrong")
			i += end + chunks.CRCSize
			continue
		}
		h.chunks++
		h.samples += int(binary.BigEndian.Uint16(rest[prefix+chunks.ChunkEncodingSize+n:]))
		h.times.add(int64(binary.BigEndian.Uint64(rest[chunks.SeriesRefSize:])))                     //nolint:gosec // a time stored as bits
		h.times.add(int64(binary.BigEndian.Uint64(rest[chunks.SeriesRefSize+chunks.MintMaxtSize:]))) //nolint:gosec // a time stored as bits
		i += end + chunks.CRCSize
	}
	return nil
}

func (h *headChunks) fail(torn bool, at int, why string) {
	if torn {
		h.torn = true
		return
	}
	if h.damage == nil {
		h.damage = fmt.Errorf("%s at byte %d", why, at)
	}
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
