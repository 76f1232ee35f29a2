// The row tables of one step, made from a batch: which place every row writes and which block table
// it reads.
#pragma once

#include <span>

#include "kernels/kernels.h"
#include "kv/placement.h"
#include "model/batch.h"
#include "model/step_array.h"

namespace invar {

// Device addresses, valid until the next build.
struct StepTables {
  const int32_t* tokens = nullptr;       // [T]
  const int32_t* positions = nullptr;    // [T]
  const int32_t* logit_rows = nullptr;   // [logit rows]
  const int32_t* write_begin = nullptr;  // [T + 1]; see QkvParams
  const int32_t* write_page = nullptr;
  const int32_t* write_place = nullptr;
  const int32_t* table_of = nullptr;  // [T]; see AttentionParams
  const int32_t* const* tables = nullptr;
  const PlaceCopy* copies = nullptr;  // to be done in every layer before anything is written
  int64_t num_copies = 0;
};

class StepTableBuilder {
 public:
  StepTables build(const Batch& batch, int page_places, Device& device);
  // How the last batch was placed; also says what accepting a draft path takes.
  const Placement& placement() const { return placement_; }

 private:
  // Copies to a step array and publishes it.
  template <typename T>
  static const T* publish(StepArray<T>& array, std::span<const T> values, Device& device);

  Placement placement_;
  StepArray<int32_t> tokens_, positions_, logit_rows_, write_begin_, write_page_, write_place_,
      table_of_, table_pages_;
  StepArray<const int32_t*> tables_;
  StepArray<PlaceCopy> copies_;
};

}  // namespace invar
