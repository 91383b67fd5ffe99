// The protocol between the rendezvous store and the ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "millrace/base/hash/digest.h"
#include "millrace/collectives/tcp/handshake.h"

namespace millrace::collectives {

/// What a connection to the store asks for in the handshake.
inline constexpr ConnectionRequest kStoreRequest = {std::byte{'s'}, std::byte{'t'}, std::byte{'o'}, std::byte{'r'},
                                                    std::byte{'e'}};

/// Keys travel as their SHA-256, so that all have one size.
using StoreKey = Sha256Digest;
/// The longest text. Ranks leave names of machines, addresses and names of segments.
inline constexpr std::size_t kMaxStoreText = 1024;

enum class StoreOrder : std::uint8_t {
  kSet,  ///< the text follows; there is no answer
  kGet,  ///< answered when the key is there: the size of the text in two bytes, then the text
};
/// The beginning of each order, as its bytes: between processes of one build.
struct StoreHead {
  StoreOrder order;
  std::uint8_t zero = 0;
  std::uint16_t size = 0;  ///< of the text of kSet
  StoreKey key;
};
static_assert(sizeof(StoreHead) == 36);

}  // namespace millrace::collectives
