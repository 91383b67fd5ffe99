// Products and what makes them as JSON (docs/formats/compiled-steps.md).
#pragma once

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/engine/ops/common/step_kernels.h"

namespace millrace::train {

/// An array of all products.
Json ProductsOf(const engine::ops::SeenProducts& seen);
/// Adds the products of such an array. Errors: kCorrupt.
Status AddProducts(const Json& array, engine::ops::SeenProducts& to);

/// An array of the products that are chosen, each with what makes it.
Json ChoicesOf(const engine::ops::StepKernels& kernels);
/// Takes the choices of such an array. Errors: kCorrupt.
Status TakeChoices(const Json& array, engine::ops::StepKernels& kernels);

}  // namespace millrace::train
