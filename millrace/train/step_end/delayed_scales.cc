#include "millrace/train/step_end/delayed_scales.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "millrace/train/ranks/rank_group.h"

namespace millrace::train {
namespace {

using engine::ops::kFp8Tensors;
using engine::ops::OfFp8Tensors;

/// Returns the names that any rank has, in order. Collective.
Result<std::vector<std::string>> NamesOfAll(engine::Collective& group, const std::vector<std::string>& names) {
  const auto ranks = MakeRankGroup(MR_TRY(group.Duplicate("names of layers")));
  std::set<std::string> all;
  for (const std::string& text : MR_TRY(ranks->Gather(Json(names).dump()))) {
    const Json of_rank = MR_TRY(ParseJson(text, "names of layers"));
    for (const Json& name : of_rank) all.insert(name.get<std::string>());
  }
  const std::string text = MR_TRY(ranks->Broadcast(Json(all).dump()));
  return MR_TRY(ParseJson(text, "names of layers")).get<std::vector<std::string>>();
}

}  // namespace

DelayedScales::DelayedScales(engine::Collective& group, std::vector<std::string> all, std::vector<std::size_t> own,
                             at::Device device)
    : group_(group), all_(std::move(all)), own_(std::move(own)), amax_(all_.size()), values_(own_.size(), device) {}

std::vector<std::string> LayerNames(const engine::Model& model) {
  std::vector<std::string> names;
  for (const engine::LinearLayer& layer : model.linear_layers()) {
    names.push_back(layer.modules.empty() ? std::string() : layer.modules.front().name);
  }
  return names;
}

Result<std::unique_ptr<DelayedScales>> DelayedScales::Make(engine::Collective& group,
                                                           const std::vector<std::string>& layers, at::Device device) {
  std::vector<std::string> all = MR_TRY(NamesOfAll(group, layers));
  std::vector<std::size_t> own;
  for (const std::string& name : layers) {
    own.push_back(static_cast<std::size_t>(std::ranges::lower_bound(all, name) - all.begin()));
  }
  return std::unique_ptr<DelayedScales>(new DelayedScales(group, std::move(all), std::move(own), device));
}

Status DelayedScales::EndStep() {
  const std::vector<OfFp8Tensors> seen_here = values_.TakeSeen();
  at::Tensor seen =
      at::zeros({static_cast<std::int64_t>(all_.size()), static_cast<std::int64_t>(kFp8Tensors)}, at::kFloat);
  auto* const of_all = reinterpret_cast<OfFp8Tensors*>(seen.data_ptr<float>());
  for (std::size_t i = 0; i < own_.size(); ++i) {
    // A rank that saw NaN or infinity must not change the amax of all.
    std::ranges::transform(seen_here[i], of_all[own_[i]].begin(),
                           [](float value) { return std::isfinite(value) ? value : 0; });
  }
  MR_TRY(group_.AllReduce(seen, engine::Reduction::kMax));
  for (std::size_t layer = 0; layer < all_.size(); ++layer) {
    for (std::size_t tensor = 0; tensor < kFp8Tensors; ++tensor) {
      float& amax = amax_[layer][tensor];
      amax = engine::ops::DecayedAmax(amax, of_all[layer][tensor]);
    }
  }
  SetAmax();
  return {};
}

void DelayedScales::SetAmax() {
  std::vector<OfFp8Tensors> own;
  for (const std::size_t layer : own_) own.push_back(amax_[layer]);
  values_.SetAmax(own);
}

Json DelayedScales::ToJson() const {
  Json json = Json::object();
  for (std::size_t layer = 0; layer < all_.size(); ++layer) json[all_[layer]] = amax_[layer];
  return json;
}

Status DelayedScales::Restore(const Json& json) {
  const auto corrupt = [] { return Fail(Code::kCorrupt, "train.fp8 in the checkpoint is not three numbers a layer"); };
  if (!json.is_object()) return corrupt();
  std::vector<OfFp8Tensors> amaxes(all_.size());
  for (std::size_t layer = 0; layer < all_.size(); ++layer) {
    const Json* const of_layer = JsonFind(json, all_[layer]);
    if (of_layer == nullptr) continue;
    if (!of_layer->is_array() || of_layer->size() != kFp8Tensors) return corrupt();
    for (std::size_t tensor = 0; tensor < kFp8Tensors; ++tensor) {
      const Json& number = (*of_layer)[tensor];
      const double value = number.is_number() ? number.get<double>() : -1;
      if (!(value >= 0 && value <= std::numeric_limits<float>::max())) return corrupt();
      amaxes[layer][tensor] = static_cast<float>(value);
    }
  }
  amax_ = std::move(amaxes);
  SetAmax();
  return {};
}

}  // namespace millrace::train
