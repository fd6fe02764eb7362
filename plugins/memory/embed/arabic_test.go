package embed

import "testing"

// Words of one root have one key, whatever their pattern; others have not.
func TestArabicRoot(t *testing.T) {
	for _, group := range [][]string{
		{"درب", "تدريب", "يتدرب", "متدربون", "التدريب"}, {"موظف", "وظيفه", "وظايف", "الموظفون"}, {"جديد", "الجدد", "جديدة"},
		{"كتاب", "كتب", "مكتبة", "مكاتب", "الكاتب"}, {"استخدام", "مستخدم", "المستخدمين", "يستخدم"}, {"اجتماع", "الاجتماعات", "جمع", "مجموع"},
		{"قاعدة", "القواعد", "لقاعدة"}, {"فاتورة", "الفواتير"}, {"عقد", "العقود"}, {"سجل", "سجلات"}, {"ضريبة", "ضرايب"},
	} {
		for _, word := range group[1:] {
			if got, want := arabicRoot(word), arabicRoot(group[0]); got != want || got == "" {
				t.Errorf("%s has the root %q, %s has %q", word, got, group[0], want)
			}
		}
	}
	if arabicRoot("درب") == arabicRoot("كتب") {
		t.Error("two roots are one")
	}
	for _, word := range []string{"ا", "ال", "والال", "ةةة", "اااااااااا"} {
		_ = arabicRoot(word) // whatever it is
	}
}
