#include "millrace/train/compile/product_json.h"

#include <optional>
#include <string_view>
#include <utility>

namespace millrace::train {
namespace {

using engine::ops::GpuOperand;
using engine::ops::GpuProduct;
using engine::ops::ProductShape;

Json JsonOf(const ProductShape& shape) {
  return {{"rows", shape.rows},
          {"columns", shape.columns},
          {"inner", shape.inner},
          {"left_transposed", shape.left_transposed},
          {"right_transposed", shape.right_transposed},
          {"result", engine::ops::ProductResultName(shape.result)}};
}

Json JsonOf(const GpuOperand& operand) {
  Json json = {{"number", engine::ops::GpuNumberName(operand.number)},
               {"transposed", operand.transposed},
               {"stride", operand.stride}};
  if (operand.grain != engine::ops::Fp8Grain::kTensor) json["grain"] = engine::ops::Fp8GrainName(operand.grain);
  return json;
}

Json JsonOf(const GpuProduct& product) {
  return {{"rows", product.rows},
          {"columns", product.columns},
          {"inner", product.inner},
          {"left", JsonOf(product.left)},
          {"right", JsonOf(product.right)},
          {"out", JsonOf(product.out)},
          {"result", engine::ops::ProductResultName(product.result)}};
}

bool Flag(const Json& json, std::string_view key) {
  const Json* found = JsonFind(json, key);
  return found != nullptr && found->is_boolean() && found->get<bool>();
}

/// Returns what parse() makes of a member.
template <class Parse>
auto Word(const Json& json, std::string_view key, Parse&& parse) -> Result<typename decltype(parse(""))::value_type> {
  const std::string name = MR_TRY(JsonString(json, key));
  const auto parsed = parse(name);
  if (!parsed) return Fail(Code::kCorrupt, "a product has the {} \"{}\"", key, name);
  return *parsed;
}

Result<ProductShape> ShapeFrom(const Json& json) {
  ProductShape shape;
  shape.rows = MR_TRY(JsonInt(json, "rows"));
  shape.columns = MR_TRY(JsonInt(json, "columns"));
  shape.inner = MR_TRY(JsonInt(json, "inner"));
  shape.left_transposed = Flag(json, "left_transposed");
  shape.right_transposed = Flag(json, "right_transposed");
  shape.result = MR_TRY(Word(json, "result", engine::ops::ParseProductResult));
  return shape;
}

Result<GpuOperand> OperandFrom(const Json& product, std::string_view key) {
  const Json* const json = JsonFind(product, key);
  if (json == nullptr) return Fail(Code::kCorrupt, "a product on a GPU has no {}", key);
  GpuOperand operand;
  operand.number = MR_TRY(Word(*json, "number", engine::ops::ParseGpuNumber));
  operand.transposed = Flag(*json, "transposed");
  operand.stride = MR_TRY(JsonInt(*json, "stride"));
  if (JsonFind(*json, "grain") != nullptr) operand.grain = MR_TRY(Word(*json, "grain", engine::ops::ParseFp8Grain));
  return operand;
}

bool IsOnGpu(const Json& product) { return JsonFind(product, "left") != nullptr; }

Result<GpuProduct> GpuProductFrom(const Json& json) {
  GpuProduct product;
  product.rows = MR_TRY(JsonInt(json, "rows"));
  product.columns = MR_TRY(JsonInt(json, "columns"));
  product.inner = MR_TRY(JsonInt(json, "inner"));
  product.left = MR_TRY(OperandFrom(json, "left"));
  product.right = MR_TRY(OperandFrom(json, "right"));
  product.out = MR_TRY(OperandFrom(json, "out"));
  product.result = MR_TRY(Word(json, "result", engine::ops::ParseProductResult));
  return product;
}

}  // namespace

Json ProductsOf(const engine::ops::SeenProducts& seen) {
  Json json = Json::array();
  for (const ProductShape& shape : seen.on_cpu) json.push_back(JsonOf(shape));
  for (const GpuProduct& product : seen.on_gpu) json.push_back(JsonOf(product));
  return json;
}

Status AddProducts(const Json& array, engine::ops::SeenProducts& to) {
  for (const Json& each : array) {
    if (IsOnGpu(each)) {
      to.on_gpu.insert(MR_TRY(GpuProductFrom(each)));
    } else {
      to.on_cpu.insert(MR_TRY(ShapeFrom(each)));
    }
  }
  return {};
}

Json ChoicesOf(const engine::ops::StepKernels& kernels) {
  Json json = Json::array();
  for (const auto& [shape, method] : kernels.products) {
    json.push_back(JsonOf(shape));
    json.back()["method"] = engine::ops::ProductMethodName(method);
  }
  for (const auto& [product, algorithm] : kernels.gpu_products) {
    json.push_back(JsonOf(product));
    json.back()["algorithm"] = algorithm.ToText();
  }
  return json;
}

Status TakeChoices(const Json& array, engine::ops::StepKernels& kernels) {
  for (const Json& each : array) {
    if (IsOnGpu(each)) {
      const auto algorithm = MR_TRY(Word(each, "algorithm", engine::ops::GpuAlgorithm::FromText));
      kernels.gpu_products.emplace(MR_TRY(GpuProductFrom(each)), algorithm);
    } else {
      const auto method = MR_TRY(Word(each, "method", engine::ops::ParseProductMethod));
      kernels.products.emplace(MR_TRY(ShapeFrom(each)), method);
    }
  }
  return {};
}

}  // namespace millrace::train
