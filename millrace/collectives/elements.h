// The operands of collective operations: contiguous elements in memory, whatever library made them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/process/bfloat16.h"
#include "millrace/base/result.h"

namespace millrace::collectives {

enum class ElementType : std::int32_t {
  kFloat32,
  kBFloat16,
  kFloat16,
  kFloat64,
  kInt64,
  kInt32,
  kUint8,
  kBytes,  ///< the bytes of elements of another type: they can be moved, not added
};
std::size_t SizeOf(ElementType type);
std::string_view NameOf(ElementType type);
bool IsFloatingPoint(ElementType type);

class DeviceMemory;

/// The device that has elements.
struct ElementDevice {
  const DeviceMemory* memory = nullptr;  ///< null: the memory of the host. Borrowed for ever.
  int number = 0;                        ///< of several devices that `memory` is for

  bool is_host() const { return memory == nullptr; }
  std::string ToText() const;
  bool operator==(const ElementDevice&) const = default;
};

/// Says how a type shows its elements. Specialised for each type that operations take, with
///   static Elements View(const T& object);
/// which returns Elements with an `owner` if the memory is shared, and without one if it is borrowed.
template <class T>
struct ElementsOf;

/// A view of contiguous elements. Copies are views of the same elements. Made of every type that has ElementsOf.
struct Elements {
  Elements() = default;
  Elements(void* data, ElementType type, std::int64_t count) : data(data), type(type), count(count), fault(nullptr) {}
  template <class T>
    requires requires(const T& object) { ElementsOf<T>::View(object); }
  Elements(const T& object) : Elements(ElementsOf<T>::View(object)) {}  // NOLINT: implicit on purpose

  /// Borrows the bytes of an object that can be copied as bytes.
  template <class T>
  static Elements BytesOf(T& object) {
    return {&object, ElementType::kUint8, static_cast<std::int64_t>(sizeof object)};
  }

  std::size_t bytes() const { return static_cast<std::size_t>(count) * SizeOf(type); }
  std::byte* begin() const { return static_cast<std::byte*>(data); }

  void* data = nullptr;
  ElementType type = ElementType::kUint8;
  std::int64_t count = 0;
  ElementDevice device = {};
  std::shared_ptr<const void> owner = {};  ///< keeps the memory; null: the caller does
  const char* fault = "undefined";         ///< why no operation takes them; null: operations do
};

/// The memory of devices. The library that makes elements there provides it. Thread-safe. Its operations come
/// after what the calling thread has given the device before; the thread does not wait.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual std::string NameOf(int number) const = 0;  ///< "cuda:1"
  virtual Result<Elements> New(const Elements& like) const = 0;
  /// REQUIRES, as Add(): both have the same count, element type and device.
  virtual Status Copy(const Elements& to, const Elements& from) const = 0;
  virtual Status Add(const Elements& to, const Elements& what) const = 0;
};

// On any device. Errors: kResourceExhausted; those of DeviceMemory.

/// Returns memory for as many elements as `like` has, on its device, with any content.
Result<Elements> NewElements(const Elements& like);
/// REQUIRES: both have as many elements of the same type on the same device.
Status CopyElements(const Elements& to, const Elements& from);
/// Adds `what` to `to`. Rounds each sum once. REQUIRES: as above; a type that CheckReducible() takes.
Status AddElements(const Elements& to, const Elements& what);

/// The ElementType of a C++ type.
template <class T>
inline constexpr ElementType kTypeOf = ElementType::kBytes;
template <>
inline constexpr ElementType kTypeOf<float> = ElementType::kFloat32;
template <>
inline constexpr ElementType kTypeOf<Bf16> = ElementType::kBFloat16;
template <>
inline constexpr ElementType kTypeOf<double> = ElementType::kFloat64;
template <>
inline constexpr ElementType kTypeOf<std::int64_t> = ElementType::kInt64;
template <>
inline constexpr ElementType kTypeOf<std::int32_t> = ElementType::kInt32;
template <>
inline constexpr ElementType kTypeOf<std::uint8_t> = ElementType::kUint8;

/// Borrowed memory.
template <class T>
  requires(kTypeOf<T> != ElementType::kBytes)
struct ElementsOf<std::span<T>> {
  static Elements View(std::span<T> elements) {
    return {elements.data(), kTypeOf<T>, static_cast<std::int64_t>(elements.size())};
  }
};

}  // namespace millrace::collectives
