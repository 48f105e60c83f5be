-- Once they have their places.
delete from packhorse_intake
