# Reads lines "FROM UNTIL SERVICE ITEM", in the order of FROM, with times in ms. Draws when each service
# held the lock, and checks that no two holds overlapped.

{
  from[NR] = $1; until[NR] = $2; who[NR] = $3
  sold[$4]++; count[$3]++
  if (NR == 1) first = $1
  if ($1 < last) { overlaps++; print "OVERLAP: " $3 " got the lock " last - $1 " ms before the other service released it" }
  if ($2 > last) last = $2
}

END {
  columns = 78
  split("java rust", services, " ")
  for (s = 1; s <= 2; s++) {
    line = ""
    for (c = 0; c < columns; c++) {
      begin = first + (last - first) * c / columns
      end = first + (last - first) * (c + 1) / columns
      mark = "."
      for (h = 1; h <= NR; h++)
        if (who[h] == services[s] && from[h] < end && until[h] > begin) mark = "#"
      line = line mark
    }
    print services[s] "  " line
  }
  for (item in sold) {
    items++
    if (sold[item] > 1) { twice++; print "SOLD TWICE: item " item }
  }
  printf "java sold %d, rust sold %d, of %d items", count["java"], count["rust"], items
  printf " in %.1f s\n", (last - first) / 1000
  if (overlaps || twice || items != 60) exit 1
  print "no two holds overlapped, and each item was sold once"
}
