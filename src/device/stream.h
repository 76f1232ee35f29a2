// The order in which a device works, beside the host: pieces of work put into one stream are done
// one after the other, those of different streams at any time. On the host everything is done when
// the call that asks for it returns.
#pragma once

#include <cstddef>
#include <memory>

#include "base/function_ref.h"

namespace invar {

// A point of a stream's work. It stays bound to what its last `record` saw.
class Event {
 public:
  virtual ~Event() = default;
  // Blocks the host until the work before the point is done; at once when nothing was recorded.
  virtual void wait() = 0;
  // From the other event's point to this one's, both done, by the device's clock; 0 on a host.
  virtual double seconds_since(const Event&) const { return 0; }
};

// Kernels and copies that were recorded once and are launched as a whole.
class Graph {
 public:
  virtual ~Graph() = default;
};

class Stream {
 public:
  virtual ~Stream() = default;

  // Copies between host memory and the stream's device, after the work before them; the host goes
  // on. Host memory must be pinned (PinnedArray), and until the copy is done a source must keep
  // what it holds and a target must not be read.
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, const void* from, size_t bytes) = 0;
  // Copies `rows` runs of `width` bytes within the device; strides in bytes.
  virtual void copy_rows(void* to, size_t to_stride, const void* from, size_t from_stride,
                         size_t width, size_t rows) = 0;
  // Sets `bytes` bytes of the device's memory to zero.
  virtual void clear(void* to, size_t bytes) = 0;

  // Blocks the host until everything is done. An operation that failed on the way is thrown here as
  // Error.
  virtual void wait() = 0;
  // Binds the event to the work so far.
  virtual void record(Event& event) = 0;
  // Work that follows begins when the event's is done.
  virtual void wait_for(const Event& event) = 0;

  // Records the operations that `work` puts into this stream, instead of doing them. `work` must
  // not allocate device memory nor wait, and addresses and sizes are those of the recording. Null
  // on a host, where a launch costs nothing.
  virtual std::unique_ptr<Graph> record_graph(FunctionRef<void()> work) = 0;
  virtual void launch(Graph& graph) = 0;
};

}  // namespace invar
