// Distinct types for distinct integers: a BlockId is no Position.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace zipage {

template <typename Tag, typename Rep = int32_t>
class StrongInt {
 public:
  using rep = Rep;
  constexpr StrongInt() = default;
  constexpr explicit StrongInt(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  constexpr auto operator<=>(const StrongInt&) const = default;

 private:
  Rep value_{};
};

using BlockId = StrongInt<struct BlockIdTag>;          // index of a block in the KV pool
using QuerySlotId = StrongInt<struct QuerySlotIdTag>;  // index of a query slot (the window's queries of one sequence)
using Position = StrongInt<struct PositionTag>;        // logical position of a token in its sequence; drives RoPE
using SequenceId = StrongInt<struct SequenceIdTag, uint64_t>;  // never reused within one engine

}  // namespace zipage

template <typename Tag, typename Rep>
struct std::hash<zipage::StrongInt<Tag, Rep>> {
  size_t operator()(zipage::StrongInt<Tag, Rep> id) const noexcept { return std::hash<Rep>{}(id.value()); }
};
