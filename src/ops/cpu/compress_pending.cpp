#include "base/check.h"
#include "ops/cpu/cpu_backend.h"

namespace zipage::cpu {

void CpuBackend::window_scores(Queue&, const WindowScoreParams&) {
  ZIPAGE_CHECK(false, "window_scores is not built in");
}
void CpuBackend::carry(Queue&, const CarryParams&) {
  ZIPAGE_CHECK(false, "carry is not built in");
}
void CpuBackend::pool_scores(Queue&, const PoolScoresParams&) {
  ZIPAGE_CHECK(false, "pool_scores is not built in");
}
void CpuBackend::redundancy(Queue&, const RedundancyParams&) {
  ZIPAGE_CHECK(false, "redundancy is not built in");
}
void CpuBackend::combine(Queue&, const CombineParams&) {
  ZIPAGE_CHECK(false, "combine is not built in");
}
void CpuBackend::select(Queue&, const SelectParams&) {
  ZIPAGE_CHECK(false, "select is not built in");
}
void CpuBackend::compact(Queue&, const CompactParams&) {
  ZIPAGE_CHECK(false, "compact is not built in");
}

}  // namespace zipage::cpu
