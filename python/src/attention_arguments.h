// Attention over blocks of keys and values: its arguments from the keywords that Python gives
// (python/invar/torch/places.py), for both devices.
#pragma once

#include "borrower.h"
#include "kernels/inference.h"

namespace invar::python {

// Keys and values are written to where they belong in a cache of this layout.
QkvParams rotation_of(Borrower& b, CacheLayout layout, const py::dict& given);
// Without scratch memory.
AttentionParams attention_of(Borrower& b, const py::dict& given, const QkvParams& rotation);

}  // namespace invar::python
