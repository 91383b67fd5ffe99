// Tells whether a model is the one that a run adapted.
#pragma once

#include "millrace/base/result.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/engine/quantized/quantized_matrix.h"

namespace millrace::checkpoint {

/// Checks that the weights of `base` are those that the adapter's run adapted, by the fingerprint in its checkpoint: 64
/// elements of each frozen weight, rounded to the run's precision. `quantized`: codes in place of some weights; may be
/// null. Succeeds if nothing is known: for adapters of other programs, weights that were quantized in another way, and
/// weights that began at random because the model lacked them. Blocks.
/// Errors: kPreconditionFailed, with both names, if the weights differ or one is missing; those of Reader::ReadMany.
Status CheckAdaptedBase(const Reader& adapter, Reader& base, const engine::QuantizedWeights* quantized,
                        const object::Call& call = {});

}  // namespace millrace::checkpoint
