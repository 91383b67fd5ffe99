#include "millrace/train/ranks/same_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>

#include "millrace/train/ranks/share_text.h"

namespace millrace::train {
namespace {

constexpr std::array<std::string_view, 7> kOfMachines = {
    "run", "log", "checkpoint.local", "data.cache", "data.index_cache", "data.threads", "train.threads"};

/// Returns the lines of each key of the first and the second level.
std::map<std::string, std::string> Sections(std::string_view job) {
  std::map<std::string, std::string> sections;
  std::string top, key;
  while (!job.empty()) {
    const std::string_view line = job.substr(0, job.find('\n'));
    job.remove_prefix(std::min(job.size(), line.size() + 1));
    const std::size_t depth = std::min(line.find_first_not_of(' '), line.size());
    const auto name = [&] { return std::string(line.substr(depth, line.find(':') - depth)); };
    if (depth == 0) key = top = name();
    if (depth == 2) key = top + "." + name();
    sections[key].append(line).append("\n");
  }
  for (const std::string_view each : kOfMachines) {
    std::erase_if(sections, [&](const auto& section) {
      const std::string_view of = section.first;
      return of == each || (of.starts_with(each) && of[each.size()] == '.');
    });
  }
  return sections;
}

}  // namespace

std::vector<std::string> DifferentKeys(std::string_view one, std::string_view other) {
  const std::map<std::string, std::string> a = Sections(one), b = Sections(other);
  std::vector<std::string> keys;
  for (const auto& [key, lines] : a) {
    const auto found = b.find(key);
    if (found == b.end() || found->second != lines) keys.push_back(key);
  }
  for (const auto& [key, lines] : b) {
    if (!a.contains(key)) keys.push_back(key);
  }
  std::ranges::sort(keys);
  return keys;
}

Status CheckSameJob(engine::Collective& group, std::string job) {
  if (group.size() == 1) return {};
  const std::string first = MR_TRY(ShareText(group, job, 0));
  const at::Tensor mine = at::tensor({DifferentKeys(first, job).empty() ? 0 : 1}, at::kLong);
  const at::Tensor all = at::empty({group.size()}, at::kLong);
  MR_TRY(group.AllGather(all, mine));
  for (int rank = 1; rank < group.size(); ++rank) {
    if (all[rank].item<std::int64_t>() == 0) continue;
    const std::string theirs = MR_TRY(ShareText(group, std::move(job), rank));
    // A rank that fails gives up the group. Behind the barrier, all ranks have what they need for the same error.
    (void)group.Barrier();
    return Fail(
        Code::kInvalidArgument,
        "rank {} was started with another job file than rank 0; these keys differ: {}. Start all ranks with the "
        "same file",
        rank, fmt::join(DifferentKeys(first, theirs), ", "));
  }
  return {};
}

}  // namespace millrace::train
