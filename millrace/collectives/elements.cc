#include "millrace/collectives/elements.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "millrace/collectives/combine.h"

namespace millrace::collectives {
namespace {

struct ElementTypeTraits {
  std::string_view name;
  std::size_t bytes;
  bool is_floating_point;
};

constexpr ElementTypeTraits kTraits[] = {{"float32", 4, true}, {"bfloat16", 2, true}, {"float16", 2, true},
                                         {"float64", 8, true}, {"int64", 8, false},   {"int32", 4, false},
                                         {"uint8", 1, false},  {"bytes", 1, false}};

const ElementTypeTraits& TraitsOf(ElementType type) { return kTraits[static_cast<std::size_t>(type)]; }

}  // namespace

std::size_t SizeOf(ElementType type) { return TraitsOf(type).bytes; }
std::string_view NameOf(ElementType type) { return TraitsOf(type).name; }
bool IsFloatingPoint(ElementType type) { return TraitsOf(type).is_floating_point; }

std::string ElementDevice::ToText() const { return is_host() ? "the host" : memory->NameOf(number); }

Result<Elements> NewElements(const Elements& like) {
  if (!like.device.is_host()) return like.device.memory->New(like);
  Elements made = like;
  try {
    // Never null, also for no elements: an empty view still has an address.
    auto memory = std::make_shared_for_overwrite<std::byte[]>(std::max<std::size_t>(1, like.bytes()));
    made.data = memory.get();
    made.owner = std::move(memory);
  } catch (const std::bad_alloc&) {
    return Fail(Code::kResourceExhausted, "no memory for {} bytes that ranks exchange", like.bytes());
  }
  return made;
}

Status CopyElements(const Elements& to, const Elements& from) {
  if (!to.device.is_host()) return to.device.memory->Copy(to, from);
  if (to.count > 0) std::memcpy(to.data, from.data, to.bytes());
  return {};
}

Status AddElements(const Elements& to, const Elements& what) {
  if (!to.device.is_host()) return to.device.memory->Add(to, what);
  if (to.type == ElementType::kFloat16) {
    return Fail(Code::kInvalidArgument, "no addition of {} on the host", NameOf(to.type));
  }
  const void* const addends[] = {to.data, what.data};
  Combine(to.type, Reduction::kSum, to.data, addends, to.count);
  return {};
}

}  // namespace millrace::collectives
