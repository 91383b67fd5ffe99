#include "millrace/jobs/elastic.h"

#include <fmt/format.h>

namespace millrace::jobs {
namespace {

bool IsHere(const Spec& spec) { return spec.run.launcher == "local"; }

}  // namespace

Result<Spec> OnNodes(const Spec& spec, int nodes) {
  Spec inelastic = spec;
  inelastic.run.elastic.reset();
  return Spec::Parse(inelastic.Render(), spec.name,
                     {fmt::format("{}={}", IsHere(spec) ? "run.processes_per_node" : "run.nodes", nodes)});
}

std::vector<int> NodeCounts(const Spec& spec) {
  if (!spec.run.elastic) return {spec.run.nodes};
  const int per_node = IsHere(spec) ? 1 : spec.run.processes_per_node;
  const int given = spec.ranks() / per_node, most = spec.run.elastic->max.value_or(spec.ranks()) / per_node;
  std::vector<int> counts;
  for (int nodes = most; nodes * per_node >= spec.run.elastic->min && nodes > 0; --nodes) {
    if (nodes == given || OnNodes(spec, nodes)) counts.push_back(nodes);
  }
  return counts;
}

}  // namespace millrace::jobs
