// Gradients of a model that ranks divide between them.
#pragma once

#include "millrace/base/result.h"
#include "millrace/engine/parameters/parameter_buffer.h"
#include "millrace/engine/parameters/state_ranks.h"

namespace millrace::engine {

/// Adds up the owned gradients of parameters that several ranks hold, if each rank saw a part of the work. These are
/// tensor ranks that saw some of the tokens or heads (NamedParameter::partial_gradient), and the two stages of a tied
/// embedding. At most two all-reduces; blocks. REQUIRES: gradients are summed over data-parallel ranks already.
/// Errors: kUnavailable if a rank is lost.
Status SumPartialGradients(ParameterBuffer& buffer, const StateRanks& ranks);

/// Returns the norm of the whole model's gradients times `scale`, from what each rank owns. Elements that several ranks
/// hold count once. One all-reduce over ranks.model. Sums in double, in an order that does not depend on threads. All
/// ranks get the same bits. Throws ErrorException if a rank is lost.
double GradientNorm(const ParameterBuffer& buffer, double scale, const StateRanks& ranks = {});

}  // namespace millrace::engine
