// Gradients of a model that tensor-parallel ranks divide between them.
#pragma once

#include "millrace/base/result.h"
#include "millrace/engine/parallel/tensor_ranks.h"
#include "millrace/engine/parameters/parameter_buffer.h"

namespace millrace::engine {

/// Adds up the gradients of parameters that all ranks hold, but of which each saw some of the tokens or heads
/// (NamedParameter::partial_gradient). One all-reduce; blocks. Errors: kUnavailable if a rank is lost.
Status SumPartialGradients(ParameterBuffer& buffer, const TensorRanks& ranks);

/// Returns the norm of all ranks' gradients times `scale`. A parameter that all ranks hold counts once. Sums in double,
/// in an order that does not depend on threads. All ranks get the same bits.
/// Throws ErrorException if a rank is lost.
double GradientNorm(const ParameterBuffer& buffer, double scale, const TensorRanks& ranks = {});

}  // namespace millrace::engine
