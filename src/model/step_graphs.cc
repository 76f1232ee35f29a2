#include "model/step_graphs.h"

#include <algorithm>

namespace invar {

void StepGraphs::launch(const StepShape& shape, Stream& stream, FunctionRef<void()> work) {
  ++steps_;
  const auto found = std::ranges::find(entries_, shape, &Entry::shape);
  if (found == entries_.end()) {
    if (entries_.size() == kMostShapes)
      entries_.erase(std::ranges::min_element(entries_, {}, &Entry::used));
    entries_.push_back({.shape = shape, .used = steps_});
    return work();
  }
  found->used = steps_;
  if (!found->graph) found->graph = stream.record_graph(work);
  ++launched_;
  stream.launch(*found->graph);
}

}  // namespace invar
